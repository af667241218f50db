# 100,000 small files, or as many as there is room for. Fooled: the machine runs out of inodes or memory.
mkdir many && cd many && seq 1 100000 | split -a 5 -l 1 || { ls | wc -l; exit 1; }
