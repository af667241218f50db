# Fooled: whoever reads the file waits for ever.
# code: EPATH
mkfifo notes
