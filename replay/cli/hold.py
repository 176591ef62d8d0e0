"""`backlogctl hold`: raise a topic's retention now, so that nothing more expires for a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, check_allowed, read_duration, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from backlogctl.ledger import Hold


@verb
def hold_retention(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="The stream; needed to change it.")] = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="Keep what is there now for 6h, 2d, ...")
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="Give it back now.")] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="`disk`: hold it though the disks may fill up.")
    ] = None,
) -> None:
    """Hold a topic's retention for a while, give it back, or show what is held."""
    from backlogctl.errors import UsageError
    from backlogctl.replay.observe.retention import (
        ALLOW_DISK,
        hold_stream,
        release_due,
        release_stream,
    )

    check_allowed(allow, ALLOW_DISK)
    if duration is not None and release:
        raise UsageError("--for and --release exclude each other", subject="--for")
    if stream is None and (duration is not None or release):
        raise UsageError("name the stream", subject="hold", hint="backlogctl hold STREAM --for 6h")
    length = None if duration is None else read_duration(duration, "--for")
    if length is not None and not length:
        raise UsageError("it must be longer than zero", subject="--for")
    workspace = session.open_workspace()
    chosen = None if stream is None else workspace.config.stream(stream)
    if not release:
        for sentence in release_due(workspace):
            session.say(sentence, "yellow")
    holds = workspace.ledger.holds
    if chosen is None or (length is None and not release):
        _emit(session, holds.list(stream=stream), (), "nothing is held")
        return
    if length is not None:
        held = hold_stream(workspace, chosen, length, allow_full=bool(allow))
        told = f"nothing deletes the messages of topic {chosen.topic}, so nothing was raised"
        found = [] if held.hold is None else [held.hold]
        _emit(session, found, held.warnings, told, disk=asdict(held.disk))
        return
    released, warnings = release_stream(workspace, chosen)
    others = holds.list(stream=stream)
    warnings += [
        f"{one.holder} holds topic {one.topic} still, and gives it back when it ends"
        for one in others
    ]
    _emit(session, released, warnings, f"no operator holds stream {stream}")


def _emit(
    session: Session,
    holds: Iterable[Hold],
    warnings: Sequence[str],
    nothing: str,
    disk: Mapping[str, Any] | None = None,
) -> None:
    from backlogctl.replay.observe.retention import describe_hold
    from backlogctl.replay.present.layout import Text

    document: dict[str, Any] = {
        "holds": [describe_hold(hold) for hold in holds],
        "disk": disk,
        "warnings": list(warnings),
    }

    session.emit(
        document,
        _draw(document["holds"]) if document["holds"] else nothing,
        _describe_ends(document["holds"]),
        [Text(f"disks: {disk['reason']}", "dim")] if disk is not None and disk["enough"] else [],
        [Text(f"! {warning}", "yellow") for warning in warnings],
    )


def _draw(holds: Iterable[Mapping[str, Any]]) -> RenderableType:
    from backlogctl.replay.present.layout import Table

    table = Table("stream", "=by", "=setting", "#was", "#is", "=until")
    for hold in holds:
        if hold["released_at"]:
            until = "released"
        elif hold["in_force"] is False:
            until = "not in force"
        elif hold["until"]:
            until = f"{hold['until'][:16].replace('T', ' ')}Z"
        else:
            until = "it ends"
        first = True
        for name, value in hold["raised"].items():
            old, new = hold["old"][name], value
            if hold["released_at"]:
                old, new = new, old
            table.add(
                *((hold["stream"], hold["holder"]) if first else ("", "")),
                name,
                _format_value(name, old),
                _format_value(name, new),
                until if first else "",
            )
            first = False
    return table


def _format_value(name: str, value: str | None) -> str:
    from backlogctl.formats import format_duration

    if value is None:
        return "unset"
    if value == "-1":
        return "unlimited"
    return format_duration(int(value) / 1000) if name.endswith(".ms") else f"{int(value):,}"


def _describe_ends(holds: Iterable[Mapping[str, Any]]) -> list[str]:
    """Until when, and who gives it back."""
    from backlogctl.clock import utc_now
    from backlogctl.monitoring.verdict.commands import HOUR, suggest_hold

    def left(hold: Mapping[str, Any]) -> float:
        """A hold that is raised again must not end sooner than it was to."""
        until = hold["until"]
        seconds = (datetime.fromisoformat(until) - utc_now()).total_seconds() if until else 0.0
        return max(6.0 * HOUR, seconds)

    return [
        f"{hold['stream']} is held until {hold['until'][:19].replace('T', ' ')}Z. `backlogctl "
        "watch` gives it back then, else the next `status` or `hold`; "
        f"`backlogctl hold {hold['stream']} --release` does at once."
        for hold in holds
        if hold["until"] and not hold["released_at"] and hold["in_force"] is not False
    ] + [
        f"{hold['stream']} is not held: the broker does not have what hold {hold['id']} raised "
        f"(somebody changed it); `{suggest_hold(hold['stream'], left(hold))}` raises it again"
        for hold in holds
        if not hold["released_at"] and hold["in_force"] is False
    ]
