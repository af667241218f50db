"""The ledger's promise under failure, checked from outside: nothing twice, nothing lost.

Real servers of a run's own, real worker and scheduler processes under a supervisor, real sandboxes, and faults in all
of them. Whatever is done to them, every job has to end as it ends when nothing is done to anybody. `python -m
tests.chaos` is the monkey that goes on for as long as it is told; the tests here are the faults one by one.
"""
