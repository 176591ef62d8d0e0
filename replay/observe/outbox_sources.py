"""Outboxes in a database as sources of streams: for `init`, which writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from textwrap import indent, wrap
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from backlogctl.config import Config
from backlogctl.config.template import FILL_IN, DiscoveredStream, make_label, name_streams

if TYPE_CHECKING:
    from backlogctl.spark_backfill.sources.outboxes import FoundOutbox

# Of one question: what an outbox holds may take a look at all of it.
LIMIT = timedelta(seconds=30)
_WIDTH = 94


@dataclass(frozen=True, slots=True)
class OutboxUse:
    """An outbox, and the topics of the streams that it became the source of."""

    outbox: FoundOutbox
    topics: tuple[str, ...]

    def describe(self) -> str:
        """A sentence for people."""
        table = f"{self.outbox.known.name}: table {self.outbox.table}"
        if why := self.outbox.why_not:
            return f"{table} is no source: {why}"
        if self.topics:
            return (
                f"{table} is the source of {', '.join(self.topics)}: check what the file says of it"
            )
        return f"{table} is of no stream yet: its source stands as a comment, to be filled in"

    def to_json(self) -> dict[str, Any]:
        known = self.outbox.known
        return {
            "outbox": known.name,
            "table": self.outbox.table,
            "topics": list(self.topics),
            "why_not": self.outbox.why_not or None,
            "check": self.outbox.list_checks(),
        }


def name_database(url: str) -> str:
    """The name of its source, after the database's; its references are not looked into."""
    try:
        name = make_url(re.sub(r"\$\{[^}]*\}", "x", url)).database or ""
    except (ArgumentError, ValueError):
        name = ""  # the configuration says what is wrong with it
    return make_label(name.rpartition("/")[2].partition(".")[0] or "database")


def look_for_outboxes(config: Config, database: str) -> list[FoundOutbox]:
    """The outboxes of a source.

    Raises:
        Refused: there is none that is known.
        ConfigurationError, SourceError: it cannot be read.
    """
    from backlogctl.spark_backfill.sources.outboxes import find_outboxes
    from backlogctl.spark_backfill.sources.reflection import open_engine

    source = config.sources[database]
    limits = source.limits.model_copy(update={"statement_timeout": LIMIT})
    engine = open_engine(source.model_copy(update={"limits": limits}), database)
    try:
        return find_outboxes(engine, database)
    finally:
        engine.dispose()


def make_streams(outboxes: Iterable[FoundOutbox]) -> list[DiscoveredStream]:
    """A stream for each topic that an outbox says it has; who reads it is to be filled in."""
    topics = {topic for one in outboxes if one.is_complete for topic in one.topics}
    return name_streams((FILL_IN, topic) for topic in topics)


def add_sources(
    streams: Sequence[DiscoveredStream], outboxes: Sequence[FoundOutbox]
) -> tuple[list[DiscoveredStream], list[OutboxUse]]:
    """The streams, those with a source whose topic exactly one outbox holds."""
    made, used = [], {one.table: list[str]() for one in outboxes}
    for stream in streams:
        fitting = [one for one in outboxes if one.is_complete and stream.topic in one.topics]
        if len(fitting) == 1:
            used[fitting[0].table].append(stream.topic)
            made.append(replace(stream, more=_render_keys(fitting[0], stream.topic)))
        else:
            made.append(stream)
    return made, [OutboxUse(one, tuple(dict.fromkeys(used[one.table]))) for one in outboxes]


def render_notes(uses: Iterable[OutboxUse]) -> str:
    """What is said of outboxes that are no stream's source, as text."""
    return "\n".join(_render_note(one.outbox) for one in uses if not one.topics)


def _render_note(outbox: FoundOutbox) -> str:
    known, what = outbox.known, f"{outbox.known.name}, the table {outbox.table}"
    if outbox.why_not:
        return _wrap(f"{what}: no message can be rebuilt from it, since {outbox.why_not}")
    text = [
        _wrap(f"{what}: under the stream that it holds the messages of, with {FILL_IN} filled in.")
    ]
    text += [_wrap(item, "- ") for item in outbox.list_checks()]
    if outbox.topics:
        text += [_wrap(f"Its topics: {', '.join(outbox.topics)}")]
    return "".join([*text, indent(known.stream, "    "), "    source:\n", _indent(outbox, FILL_IN)])


def _render_keys(outbox: FoundOutbox, topic: str) -> str:
    title = f"An outbox: {outbox.known.name}. Check, then look at the proof of `plan rebuild`:"
    said = _wrap(title) + "".join(_wrap(item, "- ") for item in outbox.list_checks())
    keys = indent(outbox.known.stream, "    ")
    return indent(said, "    # ") + keys + "    source:\n" + _indent(outbox, topic)


def _indent(outbox: FoundOutbox, topic: str) -> str:
    return indent(outbox.render_source(topic), "      ")


def _wrap(text: str, mark: str = "") -> str:
    lines = wrap(text, _WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark))
    return "".join(f"{line}\n" for line in lines)
