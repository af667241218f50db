"""Sandboxes run by an OCI runtime directly, without an engine: no daemon, no network set-up, no layers to stack.

`images` unpacks an image once, `bundle` says all that a runtime is told, `launcher` has runtimes started by a process
that does nothing else, `run` is the life of one sandbox, `cgroups` and `removal` the evidence and the proof of its
death. Only this package knows an OCI runtime.
"""

from runners.sandbox.oci.backend import OciBackend

__all__ = ["OciBackend"]
