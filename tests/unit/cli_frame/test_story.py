"""What happened in a job, in one line: of a request of its network, who was asked, where that was, and why not."""

from __future__ import annotations

from patchyard.cli.story import event_words


def test_a_request_of_a_network_says_where_it_went_or_why_not() -> None:
    body = {"host": "cdn.test", "port": 443, "address": "151.101.0.223", "outcome": "allowed", "detail": ""}
    went = event_words("network_request", {**body, "up_bytes": 517, "down_bytes": 90_000, "ms": 40})
    assert went == "allowed cdn.test:443 at 151.101.0.223, 517 bytes up, 90000 down"
    refused = {"host": "169.254.169.254", "port": 80, "address": None, "outcome": "not_public"}
    detail = "169.254.169.254 is not public (metadata)"
    assert event_words("network_request", {**refused, "detail": detail, "up_bytes": 0, "down_bytes": 0, "ms": 0}) == (
        f"not_public 169.254.169.254:80: {detail}"
    )
    assert event_words("network_requests_left_out", {"refused": 1980}) == "1980 refused requests more"


def test_what_a_command_asked_for_cannot_paint_a_terminal() -> None:
    body = {"host": "", "port": 0, "address": None, "outcome": "malformed", "detail": "\x1b[31mred\r\n"}
    assert not {"\x1b", "\r", "\n"} & set(event_words("network_request", body))
