# Fooled: whoever reads `notes` on the machine reads its passwords.
# code: EPATH
ln -s /etc/passwd notes
