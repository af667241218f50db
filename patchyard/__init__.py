"""The face: settings, Celery application, command line, local stack. The only room that wires the others together.

It may import every room. It holds no SQL and no rule of its own.
"""
