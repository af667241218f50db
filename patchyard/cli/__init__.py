"""The command line: `patchyard COMMAND`, one module a command.

A command's module is imported when the command is called, or its own help is asked for, so that `patchyard --help` is
quick whatever the commands need. A module offers `command`, a function that Typer understands, or `app`, a Typer
application of sub-commands. Here stands only what is needed to list it.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import typer.core
import typer.main

from ledger.errors import PatchyardError
from patchyard.cli.console import ExitStatus, report, say, show_what_can_be_shown
from patchyard.printable import printable

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


class Entry(NamedTuple):
    """How a command is listed; its module is `patchyard.cli.MODULE`."""

    module: str
    summary: str
    panel: str


_JOBS, _LOOK, _STACK, _SERVE = "Batches and jobs", "Looking", "This machine", "One service in the foreground"

COMMANDS: dict[str, Entry] = {
    "run": Entry("run", "Submit a batch, watch it, and write its results: the whole way in one command.", _JOBS),
    "submit": Entry("submit", "Validate a batch file and submit it in one transaction.", _JOBS),
    "watch": Entry("watch", "Follow a batch until it ends.", _JOBS),
    "cancel": Entry("cancel", "Stop a batch or a job, and show the proof that nothing is left of it.", _JOBS),
    "pause": Entry("pause", "Begin no more steps of a batch, until it is resumed.", _JOBS),
    "resume": Entry("resume", "Let a paused batch go on.", _JOBS),
    "retry": Entry("retry", "Start chosen jobs of a batch anew.", _JOBS),
    "verify": Entry("verify", "Verify a job's result again, without running its agent.", _JOBS),
    "replay": Entry("replay", "Run a job again from its recorded decisions, and compare the trees.", _JOBS),
    "resolve": Entry("resolve", "Say what became of an effect whose outcome nobody could find out.", _JOBS),
    "results": Entry("results", "The results of a batch, as a table or for machines.", _JOBS),
    "patch": Entry("patch", "A job's verified patch on stdout.", _JOBS),
    "status": Entry("status", "The state of a batch, or of all that are not finished.", _LOOK),
    "list": Entry("list", "All batches.", _LOOK),
    "show": Entry("show", "One job: agents, budgets, steps, verdict, and where its time went.", _LOOK),
    "trace": Entry("trace", "A job's events.", _LOOK),
    "budget": Entry("budget", "The accounts of a job or a batch.", _LOOK),
    "audit": Entry("audit", "Whether the books of a job or a batch are in order.", _LOOK),
    "up": Entry("up", "Start the local stack.", _STACK),
    "down": Entry("down", "Stop the local stack, and show that nothing of it is left.", _STACK),
    "ps": Entry("ps", "The processes of the local stack.", _STACK),
    "doctor": Entry("doctor", "What this machine has and lacks, each with the remedy.", _STACK),
    "probe": Entry("probe", "Whether a sandbox here is what it is said to be, with the evidence.", _STACK),
    "images": Entry("images", "Build, import, export, list and prune sandbox images.", _STACK),
    "mirrors": Entry("mirrors", "List and prune the mirrors of repositories.", _STACK),
    "worker": Entry("worker", "Work on the steps of some queues.", _SERVE),
    "scheduler": Entry("scheduler", "Admit jobs and recover what was lost.", _SERVE),
}


class LazyGroup(typer.core.TyperGroup):
    """The group of COMMANDS: a command's module is imported when it is needed and not before."""

    _listing = False

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if self._listing:
            return typer.core.TyperCommand(
                name=cmd_name, callback=None, help=entry.summary, rich_help_panel=entry.panel
            )
        return _load(cmd_name, entry)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _load(name: str, entry: Entry) -> Command:
    module = importlib.import_module(f"patchyard.cli.{entry.module}")
    own: typer.Typer | None = getattr(module, "app", None)
    if own is None:
        own = typer.Typer(add_completion=False)
        own.command(name)(module.command)
    command = typer.main.get_command(own)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print("patchyard", importlib.metadata.version("patchyard"))
        raise typer.Exit


@app.callback()
def _patchyard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Runs thousands of repo-fix agents on untrusted code, and can prove what each one did.

    The main job in one command: [bold]patchyard run batch.yaml --out out[/bold]
    """
    from patchyard.settings import unknown_variables

    for variable, remedy in unknown_variables().items():
        say(f"patchyard: {printable(variable)} is no setting and does nothing; {remedy}")


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status. No error of ours shows a traceback."""
    # What libraries log is not for a person at a terminal; services set up logs of their own.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        status: Any = typer.main.get_command(app).main(arguments, prog_name="patchyard", standalone_mode=False)
    except PatchyardError as error:
        return int(report(error))
    except typer.TyperException as error:
        return _usage(error)
    except typer.Abort:
        say("patchyard: interrupted")
        return int(ExitStatus.INTERRUPTED)
    return status if isinstance(status, int) else int(ExitStatus.DONE)


def _usage(error: typer.TyperException) -> int:
    """A wrong command line as one line; without any command the help was printed already, and says enough."""
    context = getattr(error, "ctx", None)
    hint = f"; see `{context.command_path} --help`" if context is not None else ""
    if what := " ".join(error.format_message().split()).rstrip("."):
        say(f"patchyard: {what}{hint}")
    return int(ExitStatus.BAD_INPUT)


def main() -> None:
    """The console script."""
    show_what_can_be_shown()
    sys.exit(run(sys.argv[1:]))
