"""Fixtures of the whole suite: real servers and a real engine, started when a test asks for one."""

from __future__ import annotations

import importlib.util
import signal

pytest_plugins = ["tests.fixtures.stack", "tests.fixtures.database"]
if importlib.util.find_spec("tests.fixtures.engine") is not None:
    pytest_plugins += ["tests.fixtures.engine", "tests.fixtures.probes"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and every process of the tests would ignore SIGINT as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
