"""Who asks: the name that goes into a job's history when a person does something about it."""

from __future__ import annotations

import os
import pwd
import socket


def who() -> str:
    """USER@HOST of this process."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
