"""Where a setting comes from, and what is said when one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.errors import BadInput
from patchyard.local.home import Home
from patchyard.local.services import services
from patchyard.settings import Settings, load_settings, masked_url, show_settings, unknown_variables


@pytest.fixture(autouse=True)
def _a_folder_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*Settings.model_fields, "docker_host"):
        monkeypatch.delenv(f"PATCHYARD_{name.upper()}", raising=False)
    monkeypatch.delenv("DOCKER_HOST", raising=False)


def source_of(name: str) -> str:
    return next(shown.source for shown in show_settings(load_settings()) if shown.name == f"PATCHYARD_{name.upper()}")


def line_of(excinfo: pytest.ExceptionInfo[BadInput]) -> str:
    message = excinfo.value.message
    assert "\n" not in message
    return message


def test_a_variable_that_is_no_setting_is_known_by_its_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SANDBOX_SLOT", "Lease_Secnds", "NONSENSE"):
        monkeypatch.setenv(f"PATCHYARD_{name}", "1")
    for name in ("LEASE_SECONDS", "debug", "CRASH", "TEST_MATRIX", "API_SERVICE_HOST", "PORT", "PORT_5432_TCP_ADDR"):
        monkeypatch.setenv(f"PATCHYARD_{name}", "1")
    monkeypatch.setenv("PATCHYARD_EMPTY", "")
    assert unknown_variables() == {
        "PATCHYARD_Lease_Secnds": "did you mean PATCHYARD_LEASE_SECONDS?",
        "PATCHYARD_NONSENSE": "`patchyard doctor` lists the settings",
        "PATCHYARD_SANDBOX_SLOT": "did you mean PATCHYARD_SANDBOX_SLOTS?",
    }


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().lease_seconds == 30
    assert source_of("lease_seconds") == "default"
    Path("patchyard.toml").write_text("lease_seconds = 5\nsandbox_slots = 3\n")
    assert load_settings().lease_seconds == 5
    assert source_of("lease_seconds") == "patchyard.toml: lease_seconds"
    monkeypatch.setenv("PATCHYARD_LEASE_SECONDS", "7")
    assert load_settings().lease_seconds == 7
    assert load_settings().sandbox_slots == 3
    assert source_of("lease_seconds") == "PATCHYARD_LEASE_SECONDS"


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHYARD_DATABASE_URL", "")
    assert load_settings().database_url is None
    assert source_of("database_url") == "default"


def test_the_engine_is_the_contract_variable_then_the_file_then_dockers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///docker")
    assert load_settings().docker_host == "unix:///docker"
    assert source_of("docker_host") == "DOCKER_HOST"
    Path("patchyard.toml").write_text('docker_host = "unix:///file"\n')
    assert load_settings().docker_host == "unix:///file"
    monkeypatch.setenv("PATCHYARD_DOCKER_HOST", "unix:///own")
    assert load_settings().docker_host == "unix:///own"
    assert source_of("docker_host") == "PATCHYARD_DOCKER_HOST"


def test_relative_paths_start_in_the_working_folder(tmp_path: Path) -> None:
    assert load_settings().home == tmp_path / ".patchyard"
    Path("patchyard.toml").write_text('home = "elsewhere"\n')
    assert load_settings().home == tmp_path / "elsewhere"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PATCHYARD_LEASE_SECONDS", "soon", "PATCHYARD_LEASE_SECONDS: input should be a valid number"),
        ("PATCHYARD_LEASE_SECONDS", "0", "PATCHYARD_LEASE_SECONDS: input should be greater than or equal to 1"),
        ("PATCHYARD_SANDBOX_SLOTS", "0", "PATCHYARD_SANDBOX_SLOTS: input should be greater than or equal to 1"),
        ("PATCHYARD_SANDBOX_BACKEND", "vm", "PATCHYARD_SANDBOX_BACKEND: input should be 'auto', 'docker'"),
        ("PATCHYARD_DATABASE_URL", "mysql://h/x", "PATCHYARD_DATABASE_URL: should start with postgresql://"),
        ("PATCHYARD_DATABASE_URL", "postgresql://h:99999/x", "PATCHYARD_DATABASE_URL: is not a URL"),
        ("PATCHYARD_DATABASE_URL", "postgresql://a b/x", "PATCHYARD_DATABASE_URL: is not a URL"),
        ("PATCHYARD_BROKER_URL", "amqp://h/", "PATCHYARD_BROKER_URL: should start with redis://"),
        (
            "PATCHYARD_NETWORK_ALLOW",
            "a.test:1 cdn.test",
            "PATCHYARD_NETWORK_ALLOW: 'cdn.test': it has no port",
        ),
        ("PATCHYARD_NETWORK_ALLOW", "*:443", "PATCHYARD_NETWORK_ALLOW: '*:443': a * stands for whole names"),
        ("PATCHYARD_NETWORK_PRIVATE", "10.0.0.1/8", "PATCHYARD_NETWORK_PRIVATE: '10.0.0.1/8' is no range of addresses"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadInput) as raised:
        load_settings()
    assert line_of(raised).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lease_seconds = 'x'", "patchyard.toml: lease_seconds: input should be a valid number"),
        ("lease_second = 3", "patchyard.toml: lease_second: unknown setting; did you mean lease_seconds?"),
        ("qqq = 3", "patchyard.toml: qqq: unknown setting; known: home, database_url"),
        ("home =", "patchyard.toml: not TOML"),
        ("docker_host = 3", "patchyard.toml: docker_host: input should be a valid string"),
    ],
)
def test_a_bad_line_of_the_file_is_named(text: str, said: str) -> None:
    Path("patchyard.toml").write_text(text)
    with pytest.raises(BadInput) as raised:
        load_settings()
    assert line_of(raised).startswith(said)


def test_lists_have_commas_or_spaces_and_one_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (load_settings().network_allow, load_settings().network_private) == ((), ())
    monkeypatch.setenv("PATCHYARD_NETWORK_ALLOW", "Cdn.test:443,*.example.org:443  a.test:0080")
    monkeypatch.setenv("PATCHYARD_NETWORK_PRIVATE", "10.1.2.0/24, ::1/128")
    settings = load_settings()
    assert settings.network_allow == ("cdn.test:443", "*.example.org:443", "a.test:80")
    shown = {one.name: one.value for one in show_settings(settings)}
    assert shown["PATCHYARD_NETWORK_ALLOW"] == "cdn.test:443,*.example.org:443,a.test:80"
    for name, value in settings.environment("network_allow", "network_private").items():  # as a service gets them
        monkeypatch.setenv(name, value)
    assert load_settings() == settings
    monkeypatch.delenv("PATCHYARD_NETWORK_ALLOW")
    monkeypatch.delenv("PATCHYARD_NETWORK_PRIVATE")
    Path("patchyard.toml").write_text('network_allow = ["cdn.test:443"]\nnetwork_private = "10.1.2.0/24"\n')
    assert (load_settings().network_allow, load_settings().network_private) == (
        ("cdn.test:443",),
        ("10.1.2.0/24",),
    )


def test_only_workers_of_sandboxes_are_told_of_networks(tmp_path: Path) -> None:
    settings = load_settings(network_allow="cdn.test:443,a.test:1", network_private="10.1.2.0/24")
    told = {
        service.name: [service.environment.get(f"PATCHYARD_NETWORK_{name}") for name in ("ALLOW", "PRIVATE")]
        for service in services(Home(tmp_path), settings, {})
    }
    assert told.pop("worker-sandbox") == ["cdn.test:443,a.test:1", "10.1.2.0/24"]
    assert set(map(tuple, told.values())) == {(None, None)}


def test_a_file_that_is_not_text_is_one_line() -> None:
    Path("patchyard.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput) as raised:
        load_settings()
    assert line_of(raised).startswith("patchyard.toml: ")


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHYARD_DATABASE_URL", "postgresql://me:s3cret@h/x?sslpassword=s3cret")
    monkeypatch.setenv("PATCHYARD_BROKER_URL", "redis://:s3cret@h/0")
    monkeypatch.setenv("PATCHYARD_API_TOKEN", "s3cret")
    settings = load_settings()
    assert "s3cret" not in repr(settings.api_token)
    assert not [shown for shown in show_settings(settings) if "s3cret" in shown.value]
    monkeypatch.setenv("PATCHYARD_DATABASE_URL", "mysql://me:s3cret@h/x")
    with pytest.raises(BadInput) as raised:
        load_settings()
    assert "s3cret" not in line_of(raised)


@pytest.mark.parametrize("password", ["plain", "p@ss", "a:b", "with/slash"])
def test_a_password_is_masked_whatever_is_in_it(password: str) -> None:
    assert masked_url(f"redis://user:{password}@host:1/0") == "redis://user:********@host:1/0"


def test_a_service_gets_the_settings_it_is_given_and_no_other() -> None:
    settings = load_settings(api_token="t0ken", database_url="postgresql://h/x")
    assert settings.environment("database_url", "broker_url") == {"PATCHYARD_DATABASE_URL": "postgresql://h/x"}
