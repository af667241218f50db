"""git's command line against a remote: the two commands that effects need, hardened, bounded, and understood.

Nothing of the user's or the system's configuration is read, no hook of ours runs, nobody is prompted, no redirect is
followed, and only file, ssh and https (http to this machine) are spoken. A credential reaches git through its
environment, scoped to the remote's host, and is never in an argument. What git says is matched in the C locale.
"""

from __future__ import annotations

import base64
import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ledger.errors import PatchyardError
from runners.effects.credentials import Credential, Credentials
from runners.effects.errors import (
    AlreadyThere,
    CredentialMissing,
    CredentialRejected,
    EffectRefused,
    NotAForge,
    NotPermitted,
    OutcomeUnknown,
    RateLimited,
    RefusalCode,
    RejectedByRemote,
    RemoteMissing,
    RemoteMoved,
    RemoteUnreachable,
)
from runners.effects.remote import Remote, safe_to_show

MAX_OUTPUT_BYTES = 1024 * 1024
_PASSED_ON = (
    *("PATH", "http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "no_proxy", "NO_PROXY"),
    *("GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "credential.helper": "",
    "gc.auto": "0",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "60",
    "push.negotiate": "false",
    "push.recurseSubmodules": "no",
    "transfer.credentialsInUrl": "die",
}


@dataclass(frozen=True, slots=True)
class Said:
    """How one run of git ended; both texts are bounded."""

    code: int
    out: str
    err: str


class Git:
    """Runs git against remotes with the credentials of this worker."""

    def __init__(self, credentials: Credentials, *, timeout_seconds: float = 120.0) -> None:
        self._credentials, self._timeout = credentials, timeout_seconds

    def ref_at(self, remote: Remote, ref: str) -> str | None:
        """The commit that `ref` (its full name) stands at, or None. Raises EffectRefused, Temporary.

        A web page can be taken by git for a list without refs, so over HTTP a list with nothing on it, not even HEAD,
        is refused.
        """
        said = self._run(remote, ["ls-remote", "--", remote.url, ref, "HEAD"])
        if said.code != 0:
            known = self._known_failure(remote, said)
            raise known or RemoteUnreachable(f"{remote}: {self._told(remote, said)}", retry_after_seconds=10.0)
        for line in said.out.splitlines():
            commit, _, name = line.partition("\t")
            if name == ref and re.fullmatch(r"[0-9a-f]{40,64}", commit):
                return commit
        if not said.out and remote.scheme in ("http", "https"):
            raise NotAForge(str(remote), "there is no branch at all")
        return None

    def push(self, store: Path, remote: Remote, commit: str, ref: str, old: str | None) -> None:
        """Sets `ref` to `commit` if it stands at `old` (None: is absent).

        Returns when the remote said so. EffectRefused and Temporary: it was not set. AlreadyThere: it stands somewhere
        else. OutcomeUnknown: anything else.
        """
        said = self._run(
            remote,
            [
                *(f"--git-dir={store}", "push", "--porcelain", "--no-verify", "--no-follow-tags"),
                *(f"--force-with-lease={ref}:{old or ''}", "--", remote.url, f"{commit}:{ref}"),
            ],
        )
        for line in said.out.splitlines():
            flag, _, rest = line.partition("\t")
            names, _, summary = rest.partition("\t")
            if names == f"{commit}:{ref}":
                return self._judge(remote, said, flag, summary)
        known = self._known_failure(remote, said)
        raise known or OutcomeUnknown(f"{remote}: {self._told(remote, said)}")

    def _judge(self, remote: Remote, said: Said, flag: str, summary: str) -> None:
        """What the porcelain line of a ref says (git-push(1), OUTPUT)."""
        if flag in (" ", "+", "*", "="):
            if said.code == 0:
                return
            raise OutcomeUnknown(f"{remote}: {self._told(remote, said)}")
        reason = safe_to_show(summary, self._secrets(remote))
        if "stale info" in summary:
            raise AlreadyThere(f"{remote}: the branch is there already ({reason})")
        told = self._remote_lines(remote, said) or reason
        # libcurl repeats a request on a connection that was dropped: then it is our own first one that stands in the
        # way of the second, and only the world can tell.
        if not summary.startswith("[remote rejected]") or (
            _NOT_THE_LAST_WORD.search(summary) and "cannot create" not in told
        ):
            raise OutcomeUnknown(f"{remote}: {reason}")
        code: RefusalCode = "hook_declined" if "hook" in summary else "rejected"
        raise RejectedByRemote(str(remote), told, code="protected" if "protected" in f"{summary} {told}" else code)

    def _known_failure(self, remote: Remote, said: Said) -> PatchyardError | None:
        """An error that says for certain that nothing was done, or None."""
        told = self._told(remote, said)
        # What a hook printed says nothing about what became of the push.
        own = "\n".join(line for line in said.err.splitlines() if not line.startswith("remote:"))
        for pattern, refusal in _REFUSALS:
            if pattern.search(own):
                return refusal(str(remote), told)
        if _BEFORE_SENDING.search(own):
            return RemoteUnreachable(f"{remote}: {told}", retry_after_seconds=10.0)
        if "returned error: 429" in own:
            return RateLimited(f"{remote}: {told}", retry_after_seconds=60.0)
        return None

    def _told(self, remote: Remote, said: Said) -> str:
        """The line of git's that says most: the remote's own, else the last."""
        if own := self._remote_lines(remote, said):
            return own
        lines = [line for line in said.err.splitlines() if line.strip() and not line.startswith("hint:")]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
        return safe_to_show((fatal or lines or [f"git ended with {said.code}"])[0], self._secrets(remote))

    def _remote_lines(self, remote: Remote, said: Said) -> str:
        lines = [line.removeprefix("remote:").strip() for line in said.err.splitlines() if line.startswith("remote:")]
        return safe_to_show("; ".join(line for line in lines if line.strip("-= ")), self._secrets(remote))

    def _secrets(self, remote: Remote) -> list[str]:
        credential = self._credentials.of(remote.host)
        if credential is None or not credential.token:
            return []
        return [credential.token, f"{credential.user}:{credential.token}"]

    def _run(self, remote: Remote, arguments: list[str]) -> Said:
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        environment = _environment(remote, self._credentials.of(remote.host))
        return _bounded_run(["git", *settings, *arguments], environment, self._timeout)


_NOT_THE_LAST_WORD = re.compile(
    r"cannot lock ref|failed to (update|lock)|unable to (create|migrate)|unpacker error|internal (server )?error|"
    r"timed? ?out|try again",
    re.IGNORECASE,
)
_REFUSALS: tuple[tuple[re.Pattern[str], type[EffectRefused]], ...] = (
    (
        re.compile(
            r"Authentication failed|could not read (Username|Password)|returned error: 401|Permission denied \(|"
            r"Host key verification failed|Load key|no mutual signature|Too many authentication failures"
        ),
        CredentialRejected,
    ),
    (
        re.compile(
            r"returned error: 403|Permission to .* denied|not allowed to|access denied|insufficient permission|"
            r"write access to repository not granted|dubious ownership|read-only|Permission denied$",
            re.IGNORECASE | re.MULTILINE,
        ),
        NotPermitted,
    ),
    (
        re.compile(r"not found|does not appear to be a git repository|returned error: 404|no such project", re.I),
        RemoteMissing,
    ),
    (re.compile(r"not valid: is this a git repository|Cannot access URL|invalid server response"), NotAForge),
    (re.compile(r"unable to update url base from redirection|returned error: 30\d"), RemoteMoved),
    (re.compile(r"shallow update not allowed|returned error: (400|405|410|413|422)"), RejectedByRemote),
)
_BEFORE_SENDING = re.compile(
    r"Could not resolve host|Failed to connect|Couldn't connect|ssh: connect to host|kex_exchange_identification",
    re.IGNORECASE,
)


def _environment(remote: Remote, credential: Credential | None) -> dict[str, str]:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment |= {
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_ALLOW_PROTOCOL": "http" if remote.scheme == "http" else "file:ssh:https",
        "GIT_PROTOCOL_FROM_USER": "0",
    }
    if remote.scheme == "ssh":
        environment |= _ssh(remote, credential)
    elif remote.scheme != "file" and credential is not None and credential.token:
        login = base64.b64encode(f"{credential.user}:{credential.token}".encode()).decode()
        environment |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{remote.scheme}://{remote.host}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {login}",
        }
    return environment


def _ssh(remote: Remote, credential: Credential | None) -> Mapping[str, str]:
    if credential is None or credential.ssh_key is None:
        raise CredentialMissing(str(remote), f"no ssh_key for {remote.host} in the publish worker's credentials")
    known_hosts = str(credential.known_hosts) if credential.known_hosts else "/etc/ssh/ssh_known_hosts"
    options = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f'"{known_hosts}"',
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
        "ForwardAgent": "no",
        "PermitLocalCommand": "no",
    }
    words = ["ssh", "-F", "/dev/null", "-i", str(credential.ssh_key)]
    words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return {"GIT_SSH_COMMAND": shlex.join(words), "GIT_SSH_VARIANT": "ssh"}


def _bounded_run(argv: list[str], environment: Mapping[str, str], timeout_seconds: float) -> Said:
    """Runs a program until its end, its time or its bound of output; then its whole group is killed."""
    process = subprocess.Popen(
        argv,
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
    assert process.stderr is not None  # noqa: S101  (likewise)
    try:
        out, err, stopped = _read_both(process.stdout, process.stderr, time.monotonic() + timeout_seconds)
        if not stopped:
            return Said(process.wait(timeout_seconds), out, err)
        return Said(-1, out, f"{err}\nfatal: {stopped}")
    except subprocess.TimeoutExpired:
        return Said(-1, "", "fatal: git did not end in time")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        process.stderr.close()


def _read_both(out: IO[bytes], err: IO[bytes], deadline: float) -> tuple[str, str, str]:
    """Both texts, and why reading stopped before their end ("" if it did not)."""
    got: dict[int, bytearray] = {out.fileno(): bytearray(), err.fileno(): bytearray()}
    stopped = ""
    with selectors.DefaultSelector() as selector:
        for pipe in (out, err):
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and not stopped:
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                stopped = "git did not end in time"
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                got[key.fd] += data
                if len(got[key.fd]) > MAX_OUTPUT_BYTES:
                    stopped = "the remote says more than it may"
    texts = [bytes(data[:MAX_OUTPUT_BYTES]).decode("utf-8", "replace") for data in got.values()]
    return texts[0], texts[1], stopped
