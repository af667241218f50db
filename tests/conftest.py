"""Fixtures of the whole suite: real servers and a real engine, started when a test asks for one."""

from __future__ import annotations

import importlib.util

pytest_plugins = ["tests.fixtures.stack", "tests.fixtures.database"]
if importlib.util.find_spec("tests.fixtures.engine") is not None:
    pytest_plugins += ["tests.fixtures.engine", "tests.fixtures.probes"]
