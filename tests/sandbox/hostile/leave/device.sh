# Fooled: a disk of the machine is in the tree.
# code: ok
# not kept: disk
mknod disk b 8 0 || exit 5
