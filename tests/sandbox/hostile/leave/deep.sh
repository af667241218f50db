# Fooled: what walks through the tree, or removes it, goes deeper than it can.
# code: EPATH
python3 - <<'END'
import os
for _ in range(400):
    os.mkdir("d"); os.chdir("d")
open("x", "w").close()
END
