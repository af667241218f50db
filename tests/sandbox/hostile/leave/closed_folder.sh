# Fooled: as above, for all that a folder holds.
# code: EPATH
chmod 000 calc
