"""git itself, run so that nothing of a repository, a user or a network can make it do more than copy objects.

No hooks, no submodules, no prompt, no smudge, no lazy fetch, no replacement refs; four protocols; configuration from
one file of ours, which git's own children read too (variables like GIT_CONFIG_COUNT do not reach the `upload-pack` of a
local source); bounded in time and in bytes written; a message of git reaches nobody before its URLs are redacted.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from runners.workspace.errors import RepoUnavailable
from runners.workspace.location import redacted

_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTPS_PROXY", "NO_PROXY",
    "ALL_PROXY",
)  # fmt: skip

# Faults of old tools that harm nobody and that well-known repositories have; everything else of git's fsck refuses.
_HARMLESS = (
    "zeroPaddedFilemode", "missingSpaceBeforeDate", "badTimezone", "missingEmail", "badEmail", "missingNameBeforeEmail",
    "badDate", "badDateOverflow", "zeroPaddedDate", "missingSpaceBeforeEmail", "badName", "gitattributesLarge",
)  # fmt: skip

_CONFIG = """# Written by patchyard: the only configuration that git reads here.
[core]
\thooksPath = /dev/null
\tfsmonitor = false
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\taskPass = false
\tpager = cat
[safe]
\tdirectory = *
[transfer]
\tfsckObjects = true
[fetch]
\tfsckObjects = true
\trecurseSubmodules = false
\twriteCommitGraph = false
\tparallel = 1
[submodule]
\trecurse = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[protocol]
\tversion = 2
[http]
\tlowSpeedLimit = 1000
\tlowSpeedTime = 60
[pack]
\tthreads = 2
[credential]
\thelper =
\tinteractive = false
"""


class GitFailed(RepoUnavailable):
    """git did not do what it was asked."""

    def __init__(self, said: str) -> None:
        """`said`: what git wrote to stderr in the end, redacted, on one line."""
        self.said = said
        super().__init__(said, retry_after_seconds=5.0)


class Git:
    """The hardened git of one home folder."""

    def __init__(self, home: Path, *, timeout_seconds: float, max_bytes: int) -> None:
        """`home`, which exists, holds our configuration file; a run may write `max_bytes` into any one file."""
        self._home, self._config = home, home / "git.config"
        self._timeout_seconds, self._max_blocks = timeout_seconds, max_bytes // 512
        if not self._config.exists() or self._config.read_text() != _harmless_config():
            draft = home / f"git.config.{os.getpid()}.{os.urandom(4).hex()}"
            draft.write_text(_harmless_config())
            draft.replace(self._config)

    def run(self, *args: str, git_dir: Path | None = None) -> str:
        """Run git on `git_dir`, or on no repository, and return its standard output (at most 64 MiB of it).

        Raises `GitFailed` when it fails, takes too long or is missing.
        """
        limited = ["sh", "-c", 'ulimit -f "$0" && exec "$@"', str(self._max_blocks), "git", *args]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                limited,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self._home,
                env=self._environment(git_dir),
                start_new_session=True,
            )
            try:
                status = process.wait(self._timeout_seconds)
            except BaseException as error:
                _kill(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise GitFailed(f"git {args[0]} took too long") from None
                raise
            if status != 0:
                raise GitFailed(_last_words(err) or f"git {args[0]} ended with {status}")
            out.seek(0)
            return out.read(64 * 1024 * 1024).decode("utf-8", "surrogateescape")

    def _environment(self, git_dir: Path | None) -> dict[str, str]:
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if git_dir is not None:
            env["GIT_DIR"] = str(git_dir)
        return env | {
            "GIT_CEILING_DIRECTORIES": str(self._home.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_GLOBAL": str(self._config),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "file:https:http:ssh",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS": "false",
            "SSH_ASKPASS_REQUIRE": "never",
            "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "LC_ALL": "C",
        }


def _harmless_config() -> str:
    lines = "".join(f"\t{fault} = warn\n" for fault in _HARMLESS)
    return f'{_CONFIG}[fetch "fsck"]\n{lines}[fsck]\n{lines}'


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill git and the children that it started: they share a process group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(err: IO[bytes]) -> str:
    err.seek(0)
    text = err.read(64 * 1024).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    bare = [re.sub(r"^(?:(?:fatal|error|remote): ?)+", "", line) for line in telling or lines]
    return redacted(" / ".join(line for line in bare if line))[:400]
