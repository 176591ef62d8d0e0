"""`backlogctl ledger`: what the SQL ledger has lost is taken over from where it is still known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from backlogctl.replay.injection.adopting import Adoption

ledger = typer.Typer(help="Take over what the ledger has lost.", no_args_is_help=True)


@ledger.callback()  # of one verb alone it would be no group
def _ledger() -> None:
    """Take over what the ledger has lost."""


@ledger.command("adopt")
@verb
def adopt_recoveries(
    session: Session,
    recovery: Annotated[
        list[str] | None, typer.Argument(help="Only these recoveries.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only shown.")] = False,
) -> None:
    """Record again what earlier recoveries put back, where the ledger was lost or restored.

    It is read from the Kafka ledger, the staging directory and the topics. Id lists that are
    missing are made again, of the messages.
    """
    from backlogctl.replay.injection.adopting import adopt, find_adoptions
    from backlogctl.replay.present.layout import spin

    workspace = session.open_workspace()
    with spin(session.err) as say:
        say("reading the Kafka ledger and the topics")
        found = find_adoptions(workspace, recovery or ())
        for one in found if yes else ():
            say(f"adopting {one.recovery_id}")
            adopt(workspace, one)
    document = {"adopted": yes, "recoveries": [_describe(one) for one in found]}
    session.emit(document, _draw(document))


def _describe(found: Adoption) -> dict[str, Any]:
    from backlogctl.replay.injection.adopting import list_next, say_adoption

    recovery = found.recovery
    return {
        "id": found.recovery_id,
        "cluster": found.cluster,
        "topic": found.topic,
        "stream": recovery and recovery.stream,
        "known": found.known is not None,
        "recordable": found.manifest is not None,
        "ended": found.ended,
        "chunks": {
            "planned": None if found.manifest is None else len(found.manifest.chunks),
            "committed": len(found.chunks),
            "unrecorded": len(found.behind),
        },
        "messages": sum(chunk.sent for chunk in found.chunks),
        "id_lists": {
            "missing": len(found.lacking),
            "rebuilt": len(found.rebuilt),
            "lost": len(found.missing),
            "lost_messages": sum(chunk.sent for chunk in found.missing),
        },
        "told": say_adoption(found),
        "next": list_next(found),
    }


def _draw(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    from backlogctl.replay.present.layout import Text
    from backlogctl.replay.present.terminal import render_next

    if not document["recoveries"]:
        yield Text("the ledger lacks nothing that the Kafka ledger knows", "green")
        return
    for one in document["recoveries"]:
        yield Text(one["id"], "bold")
        yield from (Text(f"  {sentence}") for sentence in one["told"])
    if not document["adopted"]:
        yield Text("nothing was changed")
        yield from render_next("backlogctl ledger adopt --yes")
        return
    yield from render_next(*(command for one in document["recoveries"] for command in one["next"]))
