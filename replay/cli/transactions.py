"""`backlogctl transactions`: what is open on a stream's topic, and how one is aborted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, verb
from backlogctl.replay.cli.status import Bootstrap, Cluster, Group, Topic, open_for_looking

if TYPE_CHECKING:
    from rich.console import RenderableType

transactions = typer.Typer(
    help="See the open transactions of a stream's topic, and abort one.", no_args_is_help=True
)


@transactions.command("list")
@verb
def list_all(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="The stream.")] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    group: Group = None,
    topic: Topic = None,
) -> None:
    """List what is open, who left it, who will end it, and what lies behind."""
    from backlogctl.errors import UsageError
    from backlogctl.replay.observe.stream import choose_streams
    from backlogctl.replay.observe.transactions import describe_open, list_next, list_open
    from backlogctl.replay.present.terminal import render_next, render_warnings

    if stream is None and bootstrap is None and cluster is None:
        raise UsageError("name the stream", subject="transactions list")
    workspace = open_for_looking(session, bootstrap, cluster, group, topic)
    chosen = choose_streams(workspace.config, [stream] if stream else [])
    documents = [describe_open(workspace, one, list_open(workspace, one)) for one in chosen]
    is_one = stream is not None
    document = documents[0] if is_one else {"streams": documents}

    def draw() -> Iterator[RenderableType]:
        for each in documents:
            yield from (*_draw(each), *render_warnings(each["warnings"]))
            yield from render_next(*(list_next(each) if is_one else ()))

    session.emit(document, draw())


@transactions.command("abort")
@verb
def abort_one(
    session: Session,
    stream: Annotated[str, typer.Argument(help="The stream.")],
    partition: Annotated[int, typer.Option(min=0, help="Its partition.")],
    start_offset: Annotated[int, typer.Option(min=0, help="The offset that it begins at.")],
    confirm: Annotated[
        str | None,
        typer.Option(help="Its transactional id, else the topic: instead of typing it."),
    ] = None,
    even_if_committed: Annotated[
        bool,
        typer.Option(
            "--even-if-committed",
            help="Also one that hangs and may be committed.",
        ),
    ] = False,
) -> None:
    """Abort an open transaction: what it wrote is discarded, what lies behind can be read.

    It says first what is discarded, and asks for a name to be typed.
    """
    from backlogctl.errors import Refused, UsageError
    from backlogctl.replay.observe.transactions import (
        abort,
        choose_word,
        count_discarded,
        describe_abort,
        find_open,
    )
    from backlogctl.values import to_document
    from backlogctl_delivery.visible import quote_word

    workspace = session.open_workspace()
    chosen = workspace.config.stream(stream)
    place = (workspace, chosen, partition, start_offset)
    found = find_open(*place, even_if_committed=even_if_committed)
    discarded = count_discarded(workspace, chosen, found)
    word = choose_word(found)
    for line in describe_abort(found, discarded):
        session.say(f"! {line}", "yellow")
    if confirm is None:
        if session.json or not sys.stdin.isatty():
            raise UsageError(
                "nobody confirmed it: nothing was aborted",
                subject=f"transaction {found.transaction.name}",
                hint=f"--confirm {quote_word(word)}",
            )
        confirm = typer.prompt(f"Type {word} to abort it", err=True)
    if confirm != word:
        raise Refused(
            f"{confirm!r} is not its name: nothing was aborted",
            subject=f"transaction {found.transaction.name}",
            hint=f"its name is {word}",
        )
    record = abort(workspace, chosen, found, discarded, even_if_committed=even_if_committed)
    session.emit(to_document(record), f"{found.transaction.name} is aborted: {record.how}")


def _draw(document: Mapping[str, Any]) -> Iterable[RenderableType]:
    from backlogctl.replay.present.layout import Table, Text

    if not document["transactions"]:
        yield Text(f"no transaction is open on topic {document['topic']}", "green")
    else:
        yield _draw_open(document["transactions"])
    if document["aborted"]:
        table = Table("=aborted at", "#part.", "#offset", "=producer", "=by", "what was done")
        for one in document["aborted"]:
            table.add(
                f"{one['at'][:16].replace('T', ' ')}Z",
                str(one["partition"]),
                f"{one['start']:,}",
                one["transactional_id"] or f"producer {one['producer_id']}",
                one["actor"],
                one["how"] or f"not done: {one['failure'] or 'unknown'}",
            )
        yield table


def _draw_open(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    from backlogctl.formats import format_count, format_duration, format_moment
    from backlogctl.replay.present.layout import Table, Text

    table = Table("#part.", "#offset", "=open for", "producer", "#behind it", "ends")
    for one in rows:
        name = one["transactional_id"]
        numbers = f"id {one['producer_id']}, epoch {one['producer_epoch']}"
        seconds = one["seconds_open"]
        ends = {
            "ongoing": f"aborted at {format_moment(one['ends_by'])}",
            "ending": "its coordinator is ending it",
            "hanging": "never by itself",
            "unknown": "unknown",
        }[one["fate"]]
        if one["may_be_committed"]:
            ends = "perhaps committed"
        table.add(
            str(one["partition"]),
            f"{one['start']:,}",
            "unknown" if seconds is None else format_duration(seconds),
            numbers if name is None else f"{name} ({numbers})",
            format_count(one["behind"]),
            Text(ends, "bold red" if one["fate"] == "hanging" else ""),
        )
    return table
