"""What machine a measurement was made on: a figure without it means nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import docker
import psutil


def facts(docker_host: str | None = None) -> dict[str, Any]:
    """Processors, memory, kernel, cgroup version, load, and the container engine's versions when one is named."""
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": _processor(),
        "kernel": platform.release(),
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "python": platform.python_version(),
        "cgroup": "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1 or hybrid",
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
    if docker_host is not None:
        found["engine"] = _engine(docker_host)
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _engine(docker_host: str) -> dict[str, Any]:
    client = docker.DockerClient(base_url=docker_host)
    try:
        told = client.info()
        return {
            "version": told["ServerVersion"],
            "storage": told["Driver"],
            "runtime": told["DefaultRuntime"],
            "runc": told["RuncCommit"]["ID"],
            "containers_left": told["Containers"],
        }
    finally:
        client.close()


def busy_cpu_seconds() -> float:
    """Processor time that anything on this machine has used since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def idle_share(seconds: float = 1.0) -> float:
    """The share of processor time (0 to 1) that nobody used in the next `seconds`: how quiet the machine is."""
    return round(psutil.cpu_times_percent(interval=seconds).idle / 100, 2)
