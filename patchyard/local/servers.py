"""The embedded servers of one stack: their ports and passwords, made once and kept, and their place in the plan.

The state file (mode 0600) is all that is needed to start the same servers on the same data again. A port is kept while
it is free, so that URLs written down yesterday work today.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ledger.errors import BadInput, Unfit
from ledger.logins import ServiceKind, ensure_login, login_url
from patchyard.local import postgres, valkey
from patchyard.local.account import Account, server_account
from patchyard.local.home import Home, server_folder
from patchyard.local.logs import last_lines
from patchyard.local.plan import Service, write_private
from patchyard.local.ports import free_port, is_free
from patchyard.local.postgres import PostgresServer
from patchyard.local.programs import postgres_programs, valkey_program
from patchyard.local.valkey import ValkeyServer

POSTGRES = "postgres"
VALKEY = "valkey"
SERVER_STAGE = 0
SERVICE_KINDS: tuple[ServiceKind, ...] = ("scheduler", "decide", "sandbox", "publish")
_START_ATTEMPTS = 3


@dataclass(frozen=True)
class ServerState:
    """What the servers of a home are reached by. A port of 0 was not chosen yet."""

    postgres_port: int
    postgres_password: str
    valkey_port: int
    valkey_password: str


@dataclass(frozen=True)
class EmbeddedServers:
    """The servers that this stack runs itself; None where the user has one of their own."""

    home: Home
    account: Account
    postgres: PostgresServer | None
    valkey: ValkeyServer | None

    def services(self) -> tuple[Service, ...]:
        """Their part of the plan."""
        services = []
        if self.postgres:
            services.append(self._service(POSTGRES, self.postgres, postgres.STOP_SIGNAL, stop_seconds=30))
        if self.valkey:
            services.append(self._service(VALKEY, self.valkey, valkey.STOP_SIGNAL, stop_seconds=15))
        return tuple(services)

    def _service(self, name: str, server: PostgresServer | ValkeyServer, signal: int, stop_seconds: float) -> Service:
        return Service(
            name=name,
            argv=tuple(server.argv()),
            environment=server.environment(),
            working_folder="/",
            log=str(self.home.log(name)),
            stage=SERVER_STAGE,
            stop_signal=signal,
            stop_seconds=stop_seconds,
            uid=self.account.uid if self.account.switch else None,
            gid=self.account.gid if self.account.switch else None,
        )


def read_state(home: Home) -> ServerState | None:
    """The state of `home`, or None when its servers were never started. `BadInput` when it can't be read."""
    where, remedy = str(home.state), "restore it, or move PATCHYARD_HOME away to start afresh"
    try:
        return ServerState(**json.loads(home.state.read_text()))
    except FileNotFoundError:
        return None
    except PermissionError:
        raise BadInput("belongs to another user", where=where, remedy="run as the user who started it") from None
    except (ValueError, TypeError):
        raise BadInput("is not a state of this version", where=where, remedy=remedy) from None


def database_url(state: ServerState) -> str:
    """The URL of the embedded database."""
    return postgres.database_url(state.postgres_password, state.postgres_port)


def service_urls(state: ServerState) -> dict[str, str]:
    """The database URL of each kind of service: a login of its own, with the rights of its kind and no more."""
    url = database_url(state)
    return {kind: login_url(url, kind, _password_of(state, kind)) for kind in SERVICE_KINDS}


def make_logins(state: ServerState) -> None:
    """Makes the logins of service_urls in a migrated database. LedgerUnavailable."""
    for kind in SERVICE_KINDS:
        ensure_login(database_url(state), kind, _password_of(state, kind))


def _password_of(state: ServerState, kind: str) -> str:
    """Made from the owner's password, which nobody can find out from it."""
    return hmac.new(state.postgres_password.encode(), kind.encode(), "sha256").hexdigest()


def broker_url(state: ServerState) -> str:
    """The URL of the embedded broker."""
    return valkey.broker_url(state.valkey_password, state.valkey_port)


def all_answer(state: ServerState | None, planned: Mapping[str, Service]) -> bool:
    """Whether the servers that are planned answer now."""
    if POSTGRES in planned:
        programs = Path(planned[POSTGRES].argv[0]).parent
        if state is None or not postgres.accepts(programs, state.postgres_port):
            return False
    return VALKEY not in planned or (state is not None and valkey.accepts(state.valkey_password, state.valkey_port))


def prepare_servers(
    home: Home, *, own_database: bool, own_broker: bool, living: set[str], say: Callable[[str], None]
) -> EmbeddedServers | None:
    """Everything that the embedded servers need but their start; None when the user has both.

    `living` names the servers that run already: they keep their port.
    """
    if own_database and own_broker:
        return None
    account = server_account(say)
    known = read_state(home)
    state = known or ServerState(0, secrets.token_hex(24), 0, secrets.token_hex(24))
    database = broker = None
    if not own_database:
        port = state.postgres_port if POSTGRES in living else free_port(state.postgres_port or None)
        state = replace(state, postgres_port=port)
        folder = server_folder(home, account, POSTGRES, fresh=known is None)
        database = PostgresServer(postgres_programs(account), folder, account, port, state.postgres_password)
    if not own_broker:
        port = state.valkey_port if VALKEY in living else free_port(state.valkey_port or None)
        state = replace(state, valkey_port=port)
        folder = server_folder(home, account, VALKEY, fresh=known is None)
        broker = ValkeyServer(valkey_program(account), folder, account, port, state.valkey_password)
    # Written before the cluster is made: a password that only a killed `up` knew would lock its data for ever.
    write_private(home.state, json.dumps(asdict(state), indent=1))
    if database and database.initialize():
        say("made a new PostgreSQL cluster")
    if broker:
        broker.initialize()
    return EmbeddedServers(home, account, database, broker)


def start_servers(
    prepare: Callable[[], EmbeddedServers | None],
    launch: Callable[[EmbeddedServers | None], None],
    is_living: Callable[[str], bool],
) -> EmbeddedServers | None:
    """Prepare, launch and wait until the servers answer; again with another port if somebody took one meanwhile."""
    for attempt in range(1, _START_ATTEMPTS + 1):
        servers = prepare()
        launch(servers)
        if servers is None:
            return None
        try:
            for name, server in ((POSTGRES, servers.postgres), (VALKEY, servers.valkey)):
                if server:
                    _wait(servers.home, name, server, is_living)
        except Unfit:
            if attempt == _START_ATTEMPTS or not _port_was_taken(servers, is_living):
                raise
        else:
            if servers.postgres:
                servers.postgres.create_database()
            return servers
    raise AssertionError("unreachable: the last attempt returns or raises")


def _wait(home: Home, name: str, server: PostgresServer | ValkeyServer, is_living: Callable[[str], bool]) -> None:
    try:
        server.wait_until_it_answers(lambda: is_living(name))
    except Unfit as error:
        log = home.log(name)
        lines = last_lines(log, 1)
        raise Unfit(error.message + (f": {lines[0]}" if lines else ""), remedy=f"see {log}") from None


def _port_was_taken(servers: EmbeddedServers, is_living: Callable[[str], bool]) -> bool:
    pairs = ((POSTGRES, servers.postgres), (VALKEY, servers.valkey))
    return any(server and not is_living(name) and not is_free(server.port) for name, server in pairs)
