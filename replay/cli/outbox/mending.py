"""`outbox create|retry|park|purge`: what changes the table by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from backlog.errors import Refused, UsageError
from replay.cli.outbox.choosing import OutboxOption, UrlOption, choose_outbox, read_duration
from replay.cli.shared import Session, verb

RowIds = Annotated[list[int], typer.Argument(help="Rows, by the id that `outbox list` shows.")]
DEFAULT_KEEP = "30d"


@verb
def create_table(session: Session, outbox: OutboxOption = None, url: UrlOption = None) -> None:
    """Make the table where it is not there; an application's own Alembic may do so instead."""
    desk = choose_outbox(session, outbox, url).open_desk()
    desk.create()
    session.emit({"outbox": desk.label, "table": "there"}, f"{desk.label}: the table is there")


@verb
def retry_entries(
    session: Session,
    outbox: OutboxOption = None,
    url: UrlOption = None,
    rows: Annotated[list[int] | None, typer.Argument(help="Rows, by their ids.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
) -> None:
    """Take parked messages up again, from their first attempt."""
    if bool(rows) == every:
        raise UsageError("name rows, or --all", subject="outbox retry")
    desk = choose_outbox(session, outbox, url).open_desk()
    count = desk.retry(rows or (), all_parked=every)
    session.emit({"retried": count}, f"{count:,} due again")


@verb
def park_entries(
    session: Session, rows: RowIds, outbox: OutboxOption = None, url: UrlOption = None
) -> None:
    """Hold messages back, and with each the later ones of its key."""
    count = choose_outbox(session, outbox, url).open_desk().park(rows)
    session.emit({"parked": count}, f"{count:,} parked; `backlogctl outbox retry` sends them")


@verb
def purge_entries(
    session: Session,
    outbox: OutboxOption = None,
    url: UrlOption = None,
    older_than: Annotated[str, typer.Option(help="Sent so long ago.")] = DEFAULT_KEEP,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Rows in one transaction.")] = 1_000,
    most: Annotated[int, typer.Option(min=1, help="Rows in all.")] = 1_000_000,
    discard: Annotated[
        int | None, typer.Option(help="This parked row instead; needs --allow lose.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="`lose`: the discarded message is never sent.")
    ] = None,
) -> None:
    """Delete what was sent long ago, in batches; what is not sent stays."""
    desk = choose_outbox(session, outbox, url).open_desk()
    if discard is not None:
        if allow != ["lose"]:
            raise Refused(
                "its message would never be sent",
                subject=f"outbox message {discard}",
                hint="say --allow lose if that is meant",
            )
        desk.discard(discard)
        session.emit({"discarded": discard}, f"message {discard} is deleted; its key goes on")
        return
    deleted = desk.purge(read_duration(older_than, "--older-than"), batch=batch, most=most)
    more = "; there may be more" if deleted == most else ""
    session.emit({"deleted": deleted}, f"{deleted:,} deleted{more}")
