"""Policy judges: tool contracts, rules, image pinning, ceilings.

Pure functions over records: no files, no sockets, no clock, no database. It may import the ledger's records and
errors. It must never act on what it judges.
"""
