"""The local stack: a database, a broker, an engine and the services, started and stopped on one machine.

Everything of it lives under PATCHYARD_HOME, listens on loopback only, with random passwords, and is found again after
the death of any of its processes. Nothing here knows what the services do.
"""
