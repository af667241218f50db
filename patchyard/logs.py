"""Logs: one JSON object a line for machines, a readable form on a terminal, the same events in both.

Every line written while a step is worked on says whose it is: batch, job, agent, step and fence. Lines of libraries
(Celery, the database driver) go the same way, so that one log of a process is one format.
"""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import AbstractContextManager
from typing import Any, TextIO

import structlog
from structlog.types import Processor

from ledger.records.step import Claim

_QUIET = ("celery", "kombu", "amqp", "urllib3", "docker", "yoyo")
_SILENT = "psycopg.pool"  # tells each failed attempt; we say once that the ledger is away


def configure_logs(level: str = "info", *, service: str | None = None, stream: TextIO | None = None) -> None:
    """Set up logging of this process, once at its start. `stream` is standard error if not given.

    Libraries are heard from warnings on, unless `level` is debug.
    """
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _naming(service),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(out)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.getLogger(_SILENT).setLevel(logging.DEBUG if level == "debug" else logging.ERROR)
    logging.captureWarnings(True)
    # Told at each start as root, and of no use here: messages are JSON, never pickled.
    warnings.filterwarnings("ignore", message=".*superuser privileges.*")
    # Told at each loss of the broker, about a setting that we set.
    warnings.filterwarnings("ignore", message="(?s).*on connection loss cancels all currently executed tasks")


def bound_to(claim: Claim) -> AbstractContextManager[Any]:
    """Puts the claim's identity on every line that this thread logs inside the block."""
    return structlog.contextvars.bound_contextvars(
        batch=claim.batch_name,
        job=claim.job.key,
        agent=claim.agent_id,
        step=claim.step_id,
        fence=claim.fence,
        kind=claim.kind,
    )


def _naming(service: str | None) -> Processor:
    def name_service(_logger: Any, _method: str, event: Any) -> Any:
        if service is not None:
            event.setdefault("service", service)
        return event

    return name_service


def _rendering(out: TextIO) -> list[Processor]:
    if out.isatty():
        return [structlog.dev.ConsoleRenderer()]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False, default=str)]
