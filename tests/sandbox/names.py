"""In the process that serves a sandbox's network: names that a test made up, in place of this machine's resolver."""

from __future__ import annotations

from runners.sandbox.egress import dial


def answer(names: dict[str, list[list[str]]]) -> None:
    """Each name with its answers, one after the other; the last one stays. Unknown names are."""

    def look_up(host: str, port: int) -> list[str]:
        if host not in names:
            raise OSError(f"no such name: {host}")
        answers = names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    dial.look_up = look_up
