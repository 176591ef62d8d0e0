"""`backlogctl broker`: a real Kafka on this machine, to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backlogctl.replay.cli.shared import Session, verb

broker = typer.Typer(help="A real Kafka on this machine, to try things on.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Option("--dir", help="Where its data and its log lie.", file_okay=False)
]
_DEFAULT = Path(".backlog-broker")


@broker.command("start")
@verb
def start(
    session: Session,
    directory: Directory = _DEFAULT,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
) -> None:
    """Start it in the background, or say that it runs."""
    from backlogctl.sandbox.embedded import start_broker

    state = start_broker(directory, port=port, progress=session.say)
    _show(session, directory, state.bootstrap, state.pid, running=True)


@broker.command("stop")
@verb
def stop(session: Session, directory: Directory = _DEFAULT) -> None:
    """Stop it; its data stays."""
    from backlogctl.sandbox.embedded import stop_broker

    stopped = stop_broker(directory)
    message = "stopped" if stopped else "no broker was running"
    session.emit({"running": False, "stopped": stopped}, f"{directory}: {message}")


@broker.command("status")
@verb
def status(session: Session, directory: Directory = _DEFAULT) -> None:
    """Say whether it runs, and where."""
    from backlogctl.sandbox.embedded import broker_state

    state = broker_state(directory)
    if state is None or not state.running:
        _show(session, directory, "", 0, running=False)
    else:
        _show(session, directory, state.bootstrap, state.pid, running=True)


def _show(session: Session, directory: Path, bootstrap: str, pid: int, *, running: bool) -> None:
    document = {
        "running": running,
        "bootstrap": bootstrap or None,
        "pid": pid or None,
        "directory": str(directory),
    }
    text = f"Kafka runs at {bootstrap} (pid {pid}, data in {directory})"
    session.emit(document, text if running else f"no broker runs in {directory}")
