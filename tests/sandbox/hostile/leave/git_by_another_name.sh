# Fooled: as above, where names have no case.
# code: EPATH
mkdir .GiT && printf '[core]\n\tfsmonitor = touch /tmp/pwned\n' > .GiT/config
