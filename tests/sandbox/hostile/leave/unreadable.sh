# Fooled: what cannot be read counts as deleted, or as empty.
# code: EPATH
chmod 000 README.md
