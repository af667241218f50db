"""Sandboxes: one container, one command, once.

`spec` says what goes in and what comes out, `backend` what a backend must be able to do, `wrapper` is the first process
inside, `docker` the backend on an engine that speaks Docker's API, `oci` the one on a runtime alone, `reap` the proof
that a step's sandboxes are dead; which system calls there are in a sandbox says `images.seccomp`. Nothing here passes a
host's path, socket, credential or environment variable in.
"""
