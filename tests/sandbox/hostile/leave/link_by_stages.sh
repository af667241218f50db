# Fooled: each link is within the workspace, and the way through all of them is not.
# code: EPATH
mkdir -p a/b && ln -s a/b c && ln -s c/../.. d && ln -s d/../etc/passwd notes
