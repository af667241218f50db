# Fooled: what is nothing inside is gigabytes once it is packed.
# code: ETOOBIG
for n in 1 2 3 4 5 6 7 8 9; do truncate -s 200M "hole$n"; done
