# Fooled: as above, where long names have short ones too.
# code: EPATH
mkdir git~1 && printf '[core]\n\tfsmonitor = touch /tmp/pwned\n' > git~1/config
