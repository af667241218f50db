"""The ledger remembers: records, SQL, leases, accounts, actions, receipts, events.

It knows PostgreSQL and nothing above it. It may be imported by every room and imports none. It must never decide
what an agent does, start a process or talk to anything but its database.
"""
