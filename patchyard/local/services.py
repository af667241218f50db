"""The services of a stack, and what each is allowed to know.

A service's environment is made from nothing: the few variables that any program needs, the settings of its queue, and
no others. A worker that runs sandboxes never sees a model's key, a worker that calls models never sees the engine.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from patchyard.local.home import Home
from patchyard.local.plan import Service
from patchyard.local.ready import READY_FILE
from patchyard.settings import Settings

WORKER_STAGE = 2
SCHEDULER = "scheduler"
QUEUES = ("decide", "sandbox", "publish")
_STOP_SECONDS = 20.0

# What programs need to find each other, speak the right language and trust the right certificates.
_ALWAYS = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "XDG_CONFIG_HOME",
    "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS", "PYTHONDEVMODE",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "PATCHYARD_CRASH_POINTS", "PATCHYARD_CRASH", "PATCHYARD_DEBUG",
)  # fmt: skip
_EVERY_SERVICE = ("home", "database_url", "broker_url", "lease_seconds", "log_level", "otlp_endpoint")
_DISK = ("mirrors_max_gb", "images_max_gb", "disk_min_free_gb", "disk_min_free_inodes")
_SETTINGS = {
    "decide": ("decide_slots",),
    "sandbox": (
        "docker_host", "sandbox_backend", "sandbox_runtime", "sandbox_slots", "armed", "probe_ttl_seconds",
        "network_allow", "network_private", "images_lock", *_DISK,
    ),
    "publish": ("publish_slots", "credentials", "images_lock", *_DISK),
    SCHEDULER: ("decide_slots", "sandbox_slots", "publish_slots"),
}  # fmt: skip
# Fetching a source over ssh goes through the user's agent.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "sandbox": ("SSH_AUTH_SOCK", "GIT_SSH_COMMAND"),
    "publish": ("SSH_AUTH_SOCK", "GIT_SSH_COMMAND"),
}


def base_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that every service gets."""
    return {name: environ[name] for name in _ALWAYS if name in environ} | {"PYTHONUNBUFFERED": "1"}


def worker_name(queue: str) -> str:
    """The service's name of the worker of `queue`."""
    return f"worker-{queue}"


def service_names() -> tuple[str, ...]:
    """Every service but the servers."""
    return (*(worker_name(queue) for queue in QUEUES), SCHEDULER)


def services(
    home: Home,
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    database_urls: Mapping[str, str] | None = None,
) -> tuple[Service, ...]:
    """One worker a queue, and the scheduler. `settings` are those of the running stack: its URLs, its engine.

    `database_urls` has, by queue or `scheduler`, the URLs of logins with the rights of that kind of service only.
    """

    def of_kind(kind: str) -> Settings:
        url = (database_urls or {}).get(kind, settings.database_url)
        return settings.model_copy(update={"database_url": url})

    workers = [_service(home, of_kind(queue), environ, queue, "worker", "--queues", queue) for queue in QUEUES]
    return (*workers, _service(home, of_kind(SCHEDULER), environ, SCHEDULER, "scheduler"))


def _service(home: Home, settings: Settings, environ: Mapping[str, str], key: str, *arguments: str) -> Service:
    name = SCHEDULER if key == SCHEDULER else worker_name(key)
    variables = {name: environ[name] for name in _VARIABLES.get(key, ()) if name in environ}
    ready_file = home.run.folder / f"{name}.ready"
    return Service(
        name=name,
        # -P: nothing is imported from the working folder.
        argv=(sys.executable, "-P", "-m", "patchyard.cli", *arguments),
        environment={
            **base_environment(environ),
            **variables,
            **settings.environment(*_EVERY_SERVICE, *_SETTINGS[key]),
            READY_FILE: str(ready_file),
        },
        working_folder=str(home.run.folder),
        log=str(home.log(name)),
        stage=WORKER_STAGE,
        stop_signal=signal.SIGTERM,
        stop_seconds=_STOP_SECONDS,
        ready_file=str(ready_file),
    )
