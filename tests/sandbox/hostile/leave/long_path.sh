# Fooled: a path is there that no system call takes.
# code: EPATH
python3 - <<'END'
import os
for _ in range(20):
    os.mkdir("d" * 250); os.chdir("d" * 250)
open("x", "w").close()
END
