"""Batch files: from what a person wrote to jobs that any worker can do, or to lines that say what to correct.

`read_batch` reads a file (YAML, TOML, JSON, JSON lines; other projects' formats too), `prepare` checks and looks up
everything in it without touching the ledger. Mistakes are `BadInput` with `FILE:LINE: what; remedy`, several of them
`BadBatch`. Memory does not grow with the number of jobs when they come from a JSON-lines file.
"""

from patchyard.batchfile.lookups import Finder, FoundBase, FoundImage
from patchyard.batchfile.prepare import Prepared, prepare
from patchyard.batchfile.problems import BadBatch
from patchyard.batchfile.read import BatchFile, read_batch

__all__ = [
    "BadBatch",
    "BatchFile",
    "Finder",
    "FoundBase",
    "FoundImage",
    "Prepared",
    "prepare",
    "read_batch",
]
