"""Takes memory and touches it, in children too. Fooled: the machine swaps, or somebody else is killed."""

import os

os.fork()
kept = []
while True:
    kept.append(bytearray(os.urandom(4096) * 4096))
