# Writes output without end, to both streams at once. Fooled: a log fills the disk, or memory.
yes out & yes error >&2
