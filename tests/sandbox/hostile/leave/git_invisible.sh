# Fooled: as above, where some characters do not count.
# code: EPATH
mkdir "$(printf '.g\342\200\214it')" && echo x > "$(printf '.g\342\200\214it')/config"
