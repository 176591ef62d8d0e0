"""The command line, one file a verb.

Verbs import what they need inside their functions, so that `--help`, `status` and `gaps` never
load Spark.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backlogctl.replay.cli import shared
from backlogctl.replay.cli.archive import archive
from backlogctl.replay.cli.broker import broker
from backlogctl.replay.cli.consumers import consumers
from backlogctl.replay.cli.doctor import examine, print_rights
from backlogctl.replay.cli.gaps import audit, list_gaps, waive_gap
from backlogctl.replay.cli.hold import hold_retention
from backlogctl.replay.cli.init import db, write_configuration
from backlogctl.replay.cli.ledger import ledger
from backlogctl.replay.cli.lookback import lookback
from backlogctl.replay.cli.outbox import outbox
from backlogctl.replay.cli.plan import plan
from backlogctl.replay.cli.recoveries import (
    approve_recovery,
    cancel_recovery,
    list_recoveries,
    pass_message,
    pause_recovery,
    reject_recovery,
    report_recovery,
    resume_recovery,
    run_recovery,
    show_recovery,
)
from backlogctl.replay.cli.status import show_status
from backlogctl.replay.cli.transactions import transactions
from backlogctl.replay.cli.watch import watch_streams
from backlogctl_delivery.visible import VisibleFormatter

_EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 approval needed, "
    "4 paused or outside the window (will go on), 5 refused by a guard."
)


class _InOrder(TyperGroup):
    """Verbs in the order in which people need them; a typer of its own would come last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names for `--help`."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else 99)


_ORDER = ("status", "doctor", "watch", "audit", "gaps", "waive", "hold", "transactions", "plan")

app = typer.Typer(
    name="backlogctl",
    cls=_InOrder,
    help="See Kafka consumer groups fall behind and losses coming, drain a backlog ten times as "
    "fast, and rebuild exactly the messages that were lost, once.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"backlogctl {version('backlogctl')}")
        raise typer.Exit


@app.callback()
def _note_shared_options(
    config: shared.ConfigOption = None,
    as_json: shared.JsonOption = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    shared.SESSION.note(config, as_json)


_LOOK, _RECOVER, _PREVENT, _HELP = "See", "Recover", "Lose nothing", "Around it"
app.command("init", rich_help_panel=_HELP)(write_configuration)
app.command("status", rich_help_panel=_LOOK)(show_status)
app.command("doctor", rich_help_panel=_LOOK)(examine)
app.command("watch", rich_help_panel=_LOOK)(watch_streams)
app.add_typer(audit, name="audit", rich_help_panel=_LOOK)
app.command("gaps", rich_help_panel=_LOOK)(list_gaps)
app.command("waive", rich_help_panel=_LOOK)(waive_gap)
app.command("hold", rich_help_panel=_RECOVER)(hold_retention)
app.add_typer(transactions, name="transactions", rich_help_panel=_RECOVER)
app.add_typer(plan, name="plan", rich_help_panel=_RECOVER)
app.command("recoveries", rich_help_panel=_RECOVER)(list_recoveries)
app.command("show", rich_help_panel=_RECOVER)(show_recovery)
app.command("approve", rich_help_panel=_RECOVER)(approve_recovery)
app.command("reject", rich_help_panel=_RECOVER)(reject_recovery)
app.command("run", rich_help_panel=_RECOVER)(run_recovery)
app.command("pause", rich_help_panel=_RECOVER)(pause_recovery)
app.command("resume", rich_help_panel=_RECOVER)(resume_recovery)
app.command("pass", rich_help_panel=_RECOVER)(pass_message)
app.command("cancel", rich_help_panel=_RECOVER)(cancel_recovery)
app.command("report", rich_help_panel=_RECOVER)(report_recovery)
app.add_typer(archive, name="archive", rich_help_panel=_RECOVER)
app.add_typer(outbox, name="outbox", rich_help_panel=_PREVENT)
app.add_typer(lookback, name="lookback", rich_help_panel=_PREVENT)
app.command("acl", rich_help_panel=_HELP)(print_rights)
app.add_typer(consumers, name="consumers", rich_help_panel=_HELP)
app.add_typer(broker, name="broker", rich_help_panel=_HELP)
app.add_typer(db, name="db", rich_help_panel=_HELP)
app.add_typer(ledger, name="ledger", rich_help_panel=_HELP)


_INTERRUPTED = 130  # what typer makes of Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code and prints every error itself."""
    from backlogctl.errors import UsageError

    if logging.lastResort is not None:
        # What prints warnings where nobody set logging up.
        logging.lastResort.setFormatter(VisibleFormatter())
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    try:
        code = _call(words)
        if code == _INTERRUPTED:
            shared.SESSION.say("")
            shared.SESSION.say("interrupted; the same command begins again")
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # Somebody's `head` closed our stdout; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback for people
        # Click's errors know how to say themselves; typer keeps its own copy of their classes.
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            message = str(error.format_message())
            if not message:  # help was printed because nothing was asked
                return 2
            context = getattr(error, "ctx", None)
            path = getattr(context, "command_path", "backlogctl")
            error = UsageError(message.rstrip("."), hint=f"see `{path} --help`")
        return shared.show_error(error, as_json=as_json)
    finally:
        _forget_interrupt()


def _call(words: list[str]) -> Any:
    try:
        return app(words, prog_name="backlogctl", standalone_mode=False)
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question
        return _INTERRUPTED
    except SystemError as error:
        # Native code makes one of a Ctrl-C that it does not look at (`Interrupts.restored`).
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _INTERRUPTED
        raise


def _forget_interrupt() -> None:
    """Lets `python -m` end with our exit code.

    CPython notes an interrupt that ends an `exec` of a text (a dataclass in an import is one), and
    ends by SIGINT for it, handled or not, unless another text was run since.
    """
    exec("")  # noqa: S102
