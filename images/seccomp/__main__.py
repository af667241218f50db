"""Makes the committed profiles anew: `python -m images.seccomp`."""

from __future__ import annotations

import json

from images.seccomp import ARCHITECTURES, generate, profile_file


def main() -> None:
    """Write one file for each architecture, and say which."""
    for architecture in ARCHITECTURES:
        made = profile_file(architecture)
        made.write_text(json.dumps(generate(architecture), indent=1) + "\n")
        print(made)


if __name__ == "__main__":
    main()
