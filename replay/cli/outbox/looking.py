"""`outbox status|list|show`: where messages stand. Sizes and ids, no payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlog.errors import BacklogError
from replay.cli.outbox.choosing import (
    Chosen,
    OutboxOption,
    UrlOption,
    choose_outbox,
    choose_outboxes,
)
from replay.cli.shared import Session, mask_document, verb

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from backlogctl_delivery.outbox.admin import OutboxEntry


@verb
def show_status(session: Session, outbox: OutboxOption = None, url: UrlOption = None) -> None:
    """Count what is not sent. Without a name all outboxes of the configuration.

    Exit code: 0 nothing is parked, 1 something is, or one could not be read.
    """
    chosen = choose_outboxes(session, outbox, url)
    if len(chosen) == 1:
        document = _read_status(chosen[0])
        session.emit(document, _tell_status(chosen[0], document))
        needs_somebody = bool(document["parked"])
    else:
        found = [(one, _try_status(one)) for one in chosen]
        lines = [line for one, document in found for line in _tell_status(one, document)]
        session.emit({"outboxes": [document for _, document in found]}, lines)
        needs_somebody = any(one.get("parked") or "error" in one for _, one in found)
    if needs_somebody:
        raise typer.Exit(1)


@verb
def list_entries(
    session: Session,
    outbox: OutboxOption = None,
    url: UrlOption = None,
    state: Annotated[
        list[str] | None, typer.Option(help="pending, in_progress, sent, parked; else all unsent.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only to this topic.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="How many.")] = 50,
) -> None:
    """List messages, oldest first: sizes and ids, no payload."""
    from backlogctl_delivery.outbox.database import State
    from replay.cli.shared import print_text, read_states

    states = read_states(State, state) or ()
    found = choose_outbox(session, outbox, url).open_desk().list_entries(states, topic, limit)

    def show(console: Console) -> None:
        if found:
            console.print(_draw(found))
        else:
            print_text(console, "no such message")

    session.emit({"messages": [_describe(entry) for entry in found]}, show)


@verb
def show_entry(
    session: Session,
    row: Annotated[int, typer.Argument(help="The row's id.")],
    outbox: OutboxOption = None,
    url: UrlOption = None,
) -> None:
    """Show one message: where it stands, and why it is not sent. No payload."""
    from backlogctl_delivery.visible import escape_name

    document = _describe(choose_outbox(session, outbox, url).open_desk().get_entry(row))
    shown = {**document, "headers": ", ".join(document["headers"]) or None}
    lines = [
        f"{name.replace('_', ' ')}: {escape_name(str(value))}"
        for name, value in shown.items()
        if value is not None
    ]
    session.emit(document, lines)


def _read_status(chosen: Chosen) -> dict[str, Any]:
    desk = chosen.open_desk()
    status = desk.read_status()
    return {
        "outbox": desk.label,
        "name": chosen.name or None,
        "pending": status.pending,
        "in_progress": status.in_progress,
        "parked": status.parked,
        "failed": status.failed,
        "oldest_seconds": status.oldest_seconds,
    }


def _try_status(chosen: Chosen) -> dict[str, Any]:
    """One that cannot be read leaves the others to be read."""
    try:
        return _read_status(chosen)
    except BacklogError as error:
        return {"name": chosen.name, "error": mask_document(error.to_json())}


def _tell_status(chosen: Chosen, document: dict[str, Any]) -> Sequence[str]:
    from backlog.numbers import format_duration

    name = chosen.name or document["outbox"]
    if "error" in document:
        return [f"{name}: unknown: {document['error']['message']}"]
    unsent = sum(document[state] for state in ("pending", "in_progress", "parked"))
    age = document["oldest_seconds"]
    option = f" --outbox {chosen.name}" if chosen.name else ""
    return [
        f"{name}: {unsent:,} not sent",
        f"{document['pending']:,} pending, {document['in_progress']:,} in progress, "
        f"{document['parked']:,} parked",
        *([] if age is None else [f"the oldest was added {format_duration(age)} ago"]),
        *(
            [
                f"tried before, and waiting: {document['failed']:,}; "
                f"`backlogctl outbox list{option}` says why"
            ]
            if document["failed"]
            else []
        ),
        *([f"next: backlogctl outbox list{option} --state parked"] if document["parked"] else []),
    ]


def _describe(entry: OutboxEntry) -> dict[str, Any]:
    from dataclasses import asdict
    from datetime import datetime

    from backlog.clock import format_time

    return {
        name: format_time(value) if isinstance(value, datetime) else value
        for name, value in asdict(entry).items()
    }


def _draw(entries: list[OutboxEntry]) -> RenderableType:
    from backlog.clock import format_time
    from replay.telling.layout import Table

    table = Table("#id", "topic", "=state", "#attempts", "=added", "#bytes", "last error")
    for entry in entries:
        table.add(
            str(entry.id),
            entry.topic,
            str(entry.state),
            f"{entry.attempts} of {entry.max_attempts}",
            format_time(entry.created_at)[:19] + "Z",
            "null" if entry.value_bytes is None else f"{entry.value_bytes:,}",
            entry.last_error or "",
        )
    return table
