"""`python -m tests.chaos --minutes M --seed S`: the monkey, on servers of its own; exit status 1 on any violation."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

import pytest

from tests.chaos.monkey import MINUTES, RESULTS, SEED


def main() -> int:
    """Runs the one test that is the monkey, for as long as it is told."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=None, help="which faults; drawn, and printed, when not given")
    parser.add_argument("--out", type=Path, default=None, help="a file for the tables")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    os.environ[MINUTES], os.environ[SEED] = str(given.minutes), str(seed)
    if given.out is not None:
        os.environ[RESULTS] = str(given.out.absolute())
    test = str(Path(__file__).with_name("test_monkey.py"))
    return int(pytest.main(["-q", "-s", "-p", "no:cacheprovider", test]))


if __name__ == "__main__":
    sys.exit(main())
