# Fills /tmp by a file that is deleted and still open. Fooled: what cannot be seen is not counted.
exec 3>/tmp/x && rm /tmp/x && cat /dev/zero >&3
