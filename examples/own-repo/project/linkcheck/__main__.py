"""`python3 -m linkcheck FOLDER`: prints the links that lead nowhere; exit status 1 if there are any."""

import sys
from pathlib import Path

from linkcheck.report import missing_links

if __name__ == "__main__":
    lines = missing_links(Path(sys.argv[1]))
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(1 if lines else 0)
