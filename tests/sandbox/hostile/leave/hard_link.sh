# Fooled: a file of the image, or of the machine, is in the tree.
# code: ok
# not kept: passwd
ln /etc/passwd passwd || ln /proc/1/root/etc/passwd passwd || exit 5
