"""`python -m patchyard.cli`: the command line without a console script on the PATH."""

from patchyard.cli import main

main()
