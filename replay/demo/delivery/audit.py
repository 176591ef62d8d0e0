"""The story's last question, and the oracle of the crash tests: was what is committed handled once,
and nothing else? By ids, not by counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

_MOST_IDS = 20


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a business table, and what its message tells: the number counts within its key."""

    id: str
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of the topic."""

    message_id: str
    row: Row


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found when all was at rest.

    Attributes:
        begun: ids of all business transactions, each noted before it began.
        committed: the business table.
        topic: every message, each partition's in its order.
        handled: what the consumer did, in its order; a row for each time.
        dropped: how many messages it knew already.
    """

    begun: frozenset[str]
    committed: tuple[Row, ...]
    topic: tuple[Sent, ...]
    handled: tuple[Row, ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What the comparison found; of what is wrong the ids, or the keys.

    Attributes:
        rolled_back: transactions that began and are not in the table, killed ones among them.
        repeats: messages of the topic beyond the first of each row.
        missing: committed and not in the topic, or not handled.
        twice: handled more than once.
        not_committed: in the topic or handled, and in no committed row.
        out_of_order: keys whose rows arrived first, or were handled, in another order.
        other_id: rows whose messages bear different ids, so that repeats cannot be told.
    """

    committed: int
    handled: int
    rolled_back: int
    repeats: int
    dropped: int
    missing: tuple[str, ...]
    twice: tuple[str, ...]
    not_committed: tuple[str, ...]
    out_of_order: tuple[str, ...]
    other_id: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Something was committed, and each of it was handled once, and nothing else."""
        return self.committed > 0 and not any(self.list_wrong().values())

    def list_wrong(self) -> Mapping[str, tuple[str, ...]]:
        """What must be empty, by its name."""
        return {
            field.name: value
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), tuple)
        }

    def to_json(self) -> dict[str, Any]:
        """Counts, and some ids of what is wrong."""
        wrong = self.list_wrong()
        counts = {
            field.name: len(wrong[field.name]) if field.name in wrong else getattr(self, field.name)
            for field in fields(self)
        }
        ids = {name: list(found[:_MOST_IDS]) for name, found in wrong.items() if found}
        return {**counts, "ids": ids, "passed": self.passed}

    def tell(self, rows: str) -> str:
        """In one line; `rows` is what is counted, such as `orders`."""
        seen = f"{len(self.not_committed):,} of them" if self.not_committed else "never"
        return (
            f"{self.committed:,} {rows} in the table, {self.handled:,} handled, "
            f"{len(self.missing):,} missing, {len(self.twice):,} twice, "
            f"{self.rolled_back:,} rolled back and {seen} seen"
        )


def audit_facts(facts: Facts) -> Audit:
    """Compares the business table with the topic and with what was done."""
    committed, done = set(facts.committed), Counter(facts.handled)
    sent = [message.row for message in facts.topic]
    ids: dict[Row, set[str]] = defaultdict(set)
    for message in facts.topic:
        ids[message.row].add(message.message_id)
    shared = Counter(message_id for found in ids.values() for message_id in found)
    handled_or_sent = done.keys() | ids.keys()
    return Audit(
        committed=len(committed),
        handled=len(committed & done.keys()),
        rolled_back=len(facts.begun - {row.id for row in committed}),
        repeats=len(sent) - len(ids),
        dropped=facts.dropped,
        missing=_list_ids(row for row in committed if row not in done or row not in ids),
        twice=_list_ids(row for row, count in done.items() if count > 1),
        not_committed=_list_ids(handled_or_sent - committed),
        out_of_order=tuple(sorted({*_find_disorder(sent), *_find_disorder(facts.handled)})),
        other_id=_list_ids(
            row
            for row, found in ids.items()
            if len(found) > 1 or any(shared[message_id] > 1 for message_id in found)
        ),
    )


def _find_disorder(rows: Iterable[Row]) -> set[str]:
    """Keys whose rows come for the first time behind a later one."""
    last: dict[str, int] = {}
    wrong: set[str] = set()
    for row in dict.fromkeys(rows):
        if row.number < last.get(row.key, row.number):
            wrong.add(row.key)
        last[row.key] = row.number
    return wrong


def _list_ids(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(sorted(row.id for row in rows))
