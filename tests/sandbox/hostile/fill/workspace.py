"""Fills the workspace. Fooled: more than its size is written, or the machine's disk shrinks."""

with open("big", "wb") as file:
    while True:
        file.write(b"x" * 1_048_576)
        file.flush()
