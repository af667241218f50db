"""Sandboxes as containers of an engine that speaks Docker's API. Only this package knows the Docker SDK."""

from runners.sandbox.docker.backend import DockerBackend

__all__ = ["DockerBackend"]
