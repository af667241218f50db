"""The tools that need no sandbox and those that do, one file each: functions from a tree to an observation.

A tool gets a store, a tree id and arguments that were validated; it gives bounded data, and the new tree id if it made
one. It moves no head and writes no ledger. What it can't do it says by ToolFailure, with a code of the closed list.
"""
