"""`backlogctl broker`: a real Kafka on this machine, to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, verb
from backlogctl_delivery.visible import join_words

if TYPE_CHECKING:
    from backlogctl.sandbox.embedded import BrokerState

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
    port: Annotated[
        int, typer.Option(help="Of the first broker; 0 takes a free one.", min=0, max=65535)
    ] = 0,
    brokers: Annotated[
        int, typer.Option(help="How many; three are a quorum that survives one.", min=1)
    ] = 1,
) -> None:
    """Start it in the background, or what is dead of several, or say that it runs."""
    from backlogctl.sandbox.embedded import start_broker

    heap = "512m" if brokers == 1 else "256m"
    state = start_broker(directory, brokers=brokers, heap=heap, port=port, progress=session.say)
    _show(session, directory, state)


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

    _show(session, directory, broker_state(directory))


def _show(session: Session, directory: Path, state: BrokerState | None) -> None:
    if state is None or not state.alive:
        document: dict[str, Any] = {"running": False, "bootstrap": None, "pids": [], "alive": 0}
        document["started"] = []
        text = f"no broker runs in {directory}"
    else:
        alive, count = state.alive, len(state.pids)
        document = {"running": state.running, "bootstrap": state.bootstrap}
        document |= {"pids": state.pids, "alive": alive, "started": state.started}
        pids = ", ".join(map(str, state.pids))
        text = f"Kafka runs at {state.bootstrap} (pid {pids}, data in {directory})"
        if 0 < len(state.started) < count:
            text += f"; started again: {', '.join(f'broker {one}' for one in state.started)}"
            text += "; the others went on"
        if not state.running:
            again = ["backlogctl", "broker", "start", "--brokers", f"{count}"]
            again += [] if directory == _DEFAULT else ["--dir", str(directory)]
            text += f"; {alive} of {count} brokers run; `{join_words(again)}` starts the others"
    session.emit({**document, "directory": str(directory)}, text)
