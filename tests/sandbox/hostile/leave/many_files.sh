# Fooled: 100,000 small files are in the tree, and every later command takes minutes.
# code: EDISK
mkdir many && cd many && seq 1 100000 | split -a 5 -l 1
