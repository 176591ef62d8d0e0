"""Who sends a row: claims by the head of a key, under a lease and a token (P8.2 to P8.5).

The head is the oldest row of a topic and key that is not sent. Whoever claims it has the key, and
may take the rows behind it along. Ids commit out of order, so no cursor tells what is new.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
    case,
    column,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.outbox.database import (
    LONGEST_ERROR,
    NEVER,
    OutboxDatabase,
    State,
    clock_ms,
    messages,
)
from backlogctl_delivery.outbox.heads import (
    IS_AHEAD,
    IS_DUE,
    IS_FREE,
    is_one_of,
    select_by_key,
    select_first,
    select_heads,
    select_runs,
)
from backlogctl_delivery.outbox.messages import Message, read_headers

_c = messages.c
# As many ids stand in one statement.
_MOST_IDS = 500


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A message that Kafka has, and where; None where Kafka did not say.

    `at`: when it said so, by the monotonic clock: the mark may follow much later.
    """

    message: Message
    partition: int | None
    offset: int | None
    at: float = field(default_factory=time.monotonic)


READ = select(
    _c.id,
    _c.token,
    _c.message_id,
    _c.topic,
    _c.ordering_key,
    _c.attempts,
    _c.max_attempts,
    _c.interval_ms,
    _c.message_key,
    _c.value,
    _c.headers,
)


def read_row(row: Any) -> Message:
    """A row of `READ`."""
    return Message(
        id=row.id,
        token=row.token,
        message_id=row.message_id,
        topic=row.topic,
        ordering_key=row.ordering_key,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        interval_ms=row.interval_ms,
        key=row.message_key,
        value=row.value,
        headers=read_headers(row.headers),
    )


def make_failing(due: ColumnElement[int] | int) -> Update:
    """A failed attempt: given back for a later one, or parked."""
    return (
        update(messages)
        .where(_c.id == bindparam("row"), _c.token == bindparam("held"))
        .values(
            state=bindparam("new_state"),
            due_at=due,
            token=None,
            interval_ms=bindparam("gap"),
            attempts=_c.attempts + bindparam("more"),
            last_error=bindparam("why"),
        )
    )


def make_sent(connection: Connection, acknowledged: Sequence[Acknowledged]) -> Update:
    """These rows, each with its place in Kafka, and when that had it by the database's clock."""
    ids = [item.message.id for item in acknowledged]
    now = time.monotonic()
    values: dict[str, tuple[TypeEngine[int], list[int | None]]] = {
        "sent_partition": (Integer(), [item.partition for item in acknowledged]),
        "sent_offset": (BigInteger(), [item.offset for item in acknowledged]),
        "age": (BigInteger(), [int(1_000 * (now - item.at)) for item in acknowledged]),
    }
    sets: dict[str, ColumnElement[Any]]
    if connection.dialect.name == "postgresql":
        arrays = [literal(given, ARRAY(kind)) for kind, given in values.values()]
        columns = [column(name, kind) for name, (kind, _) in values.items()]
        place = (
            func.unnest(literal(ids, ARRAY(BigInteger)), *arrays)
            .table_valued(column("id", BigInteger), *columns, name="place")
            .render_derived()
        )
        sets, is_sent = {name: place.c[name] for name in values}, _c.id == place.c.id
    else:
        sets = {
            name: case(dict(zip(ids, given, strict=True)), value=_c.id)
            for name, (_, given) in values.items()
        }
        is_sent = _c.id.in_(ids)
    age = sets.pop("age")
    return update(messages).where(is_sent).values(**sets, sent_at=clock_ms() - age)


def split_ids(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[at : at + _MOST_IDS] for at in range(0, len(ids), _MOST_IDS))


# Ids, or what finds them.
Candidates = list[int] | Select[int]
Change = Callable[[Connection, Sequence[int]], Update]
# Of so many times as many rows as are claimed the heads are looked for.
_LOOKS_AHEAD = 4
# So many parts of a walk are one claim's, each of as many rows as it claims.
_STEPS = 40


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that did not deliver. `refused`: by Kafka; else Kafka was away."""

    message: Message
    reason: str
    refused: bool

    @property
    def is_last(self) -> bool:
        """Whether the row is parked by it."""
        return self.refused and self.message.attempts + 1 >= self.message.max_attempts


class Claims:
    """Claims of one sender; its `Settings` say what the arguments mean."""

    def __init__(
        self,
        database: OutboxDatabase,
        *,
        lease: timedelta,
        most: int,
        most_of_key: int,
        first_interval: timedelta,
        longest_interval: timedelta,
    ) -> None:
        self._database = database
        self._lease_ms = _to_ms(lease)
        self._most, self._most_of_key = most, most_of_key
        self._first_ms, self._longest_ms = _to_ms(first_interval), _to_ms(longest_interval)
        # The key at which the last walk ended, and whether it did so amid keys.
        self._after: int | None = None
        self.is_midway = False
        self._owner = f"{socket.gethostname()[:100]}:{os.getpid()}"

    def claim_due(self) -> list[Message]:
        """Claims heads that are due, and rows behind them. In the order of ids.
        Raises OutboxDatabaseError: the database refused, or is away.
        """
        return self._claim(self._find_due, IS_DUE)

    def claim_hinted(self, hints: Collection[int]) -> list[Message]:
        """The same for rows of which a commit has told, and their keys, before they are due.

        A row that failed before waits for its next attempt all the same.
        """

        def find(connection: Connection) -> Iterator[Select[int]]:
            yield select_heads(connection, sorted(hints))

        return self._claim(find, or_(and_(_c.state == State.PENDING, _c.interval_ms == 0), IS_DUE))

    def bring_forward(self) -> tuple[int, bool]:
        """Takes up rows of a clock ahead of the database's, as if they were written, had failed or
        were claimed now: they would wait for that clock's time, and hold up their keys.

        Returns:
            How many, and whether there may be more.
        """
        ahead = (
            select(_c.id)
            .where(_c.due_at > select(clock_ms()).scalar_subquery(), _c.due_at < NEVER, IS_AHEAD)
            .order_by(_c.due_at.desc())
            .limit(_MOST_IDS)
        )
        with self._database.begin() as connection:
            ids = connection.execute(ahead).scalars().all()
        if not ids:
            return 0, False
        due = case(
            (_c.state == State.IN_PROGRESS, clock_ms() + self._lease_ms),
            (_c.interval_ms > 0, clock_ms() + _c.interval_ms),
            else_=_c.due_at - _c.created_at + clock_ms(),
        )
        created = case((_c.created_at > clock_ms(), clock_ms()), else_=_c.created_at)
        with self._database.begin() as connection:
            chosen = update(messages).where(is_one_of(connection, _c.id, ids), IS_AHEAD)
            # MySQL sets one after the other: the first is computed of what the second replaces.
            written = chosen.ordered_values((_c.due_at, due), (_c.created_at, created))
            return connection.execute(written).rowcount, len(ids) == _MOST_IDS

    def mark_sent(self, delivered: Sequence[Acknowledged]) -> int:
        """Marks what Kafka acknowledged.

        Returns:
            How many were: a row whose lease ended, and that another has claimed since, is his.
        """
        values = {
            "state": str(State.SENT),
            "ordering_key": None,
            "due_at": None,
            "token": None,
            "last_error": None,
            "attempts": _c.attempts + 1,
        }
        reach("p8.4.mark.before")
        places = {item.message.id: item for item in delivered}

        def mark(connection: Connection, ids: Sequence[int]) -> Update:
            return make_sent(connection, [places[id_] for id_ in ids]).values(**values)

        marked = self._update([item.message for item in delivered], mark)
        reach("p8.4.mark.after")
        return marked

    def mark_failed(self, failures: Collection[Failure]) -> None:
        """Gives rows back for another attempt later, or parks them."""
        rows = [
            {
                "row": failure.message.id,
                "held": failure.message.token,
                "next": NEVER if failure.is_last else self._next_interval(failure.message),
                "new_state": str(State.PARKED if failure.is_last else State.PENDING),
                "gap": self._next_interval(failure.message),
                "more": int(failure.refused),
                "why": failure.reason[:LONGEST_ERROR],
            }
            for failure in failures
        ]
        waiting = [row for row in rows if row["next"] != NEVER]
        parked = [row for row in rows if row["next"] == NEVER]
        reach("p8.4.failed.before")
        with self._database.begin() as connection:
            for group, due in ((waiting, clock_ms() + bindparam("next")), (parked, NEVER)):
                if group:
                    connection.execute(make_failing(due), group)
        reach("p8.4.failed.after")

    def release(self, given_up: Collection[Message]) -> None:
        """Gives rows back that were not tried: their key's head failed, or time is up."""
        values = {"state": str(State.PENDING), "due_at": clock_ms(), "token": None}

        def give_back(connection: Connection, ids: Sequence[int]) -> Update:
            return update(messages).where(is_one_of(connection, _c.id, ids)).values(**values)

        self._update(given_up, give_back)

    def _next_interval(self, message: Message) -> int:
        return min(self._longest_ms, message.interval_ms * 2 or self._first_ms)

    def _claim(
        self, find: Callable[[Connection], Iterator[Candidates]], may_start: ColumnElement[bool]
    ) -> list[Message]:
        token = uuid.uuid4().hex
        reach("p8.2.claim.before")
        with self._database.begin() as connection:
            locked: dict[int, Any] = {}
            for candidates in find(connection):
                locked |= self._lock_heads(connection, candidates, may_start)
                if len(locked) >= self._most:
                    break
            chosen = list(locked.values())[: self._most]
            keyless = [head.id for head in chosen if head.ordering_key is None]
            # Many keys: one row of each, all at once. Few: some of each, one after the other.
            depth = min(self._most_of_key, -(-self._most // len(chosen))) if chosen else 0
            runs: dict[int | None, list[int]] = {
                head.ordering_key: [head.id] for head in chosen if head.ordering_key is not None
            }
            if runs and depth > 1:
                heads = [id_ for run in runs.values() for id_ in run]
                runs = self._list_runs(connection, heads, depth)
            ids = sorted([*keyless, *(id_ for run in runs.values() for id_ in run)])
            rows = [] if self._database.is_sqlite else self._take(connection, ids, token)
        if self._database.is_sqlite and ids:
            # There a reader cannot become a writer when another has written meanwhile.
            with self._database.begin() as connection:
                rows = self._take(connection, ids, token)
        if not rows:
            return []
        reach("p8.2.claim.after")
        claimed = {row.id: row for row in rows}
        # A row of the middle that another changed meanwhile ends its key's run.
        kept = [id_ for id_ in keyless if id_ in claimed]
        for run in runs.values():
            kept += takewhile(claimed.__contains__, run)
        held = set(kept)
        if lost := [row for id_, row in claimed.items() if id_ not in held]:
            self.release(lost)
        return [claimed[id_] for id_ in sorted(kept)]

    def _find_due(self, connection: Connection) -> Iterator[Candidates]:
        """Heads that are due, at a cost that does not grow with what waits behind others: where
        that comes first, keys are walked, from where the last walk ended."""
        self.is_midway = False
        most = _LOOKS_AHEAD * self._most
        due = select(_c.id, _c.ordering_key).where(IS_DUE).order_by(_c.due_at, _c.id)
        yield select_first(connection, due.limit(most)).limit(self._most)
        if connection.execute(due.offset(most - 1).limit(1)).first() is None:
            return
        keyless = select(_c.id).where(IS_DUE, _c.ordering_key.is_(None))
        yield keyless.order_by(_c.ordering_key, _c.id).limit(self._most)
        yield self._walk(connection)

    def _walk(self, connection: Connection) -> list[int]:
        """Heads that are due, key by key from where the last walk ended, each key once."""
        found: dict[int | None, int] = {}
        for _ in range(_STEPS):
            rows = connection.execute(select_by_key(connection, self._after, self._most)).all()
            for row in rows:
                if row.ordering_key != self._after:
                    self._after = row.ordering_key
                    found |= {row.ordering_key: row.id} if row.is_due else {}
            self.is_midway = len(rows) == self._most
            if not self.is_midway:
                self._after = None
            if not self.is_midway or len(found) >= self._most:
                break
        return list(found.values())

    def _lock_heads(
        self, connection: Connection, candidates: Candidates, may_start: ColumnElement[bool]
    ) -> dict[int, Any]:
        """By id; locked where the database can, but for what others have locked."""
        if connection.dialect.name != "postgresql" and not isinstance(candidates, list):
            # InnoDB would lock all that it looks at to find them, and two claims each other's rows.
            candidates = list(connection.execute(candidates).scalars())
        heads = (
            select(_c.id, _c.ordering_key)
            .where(is_one_of(connection, _c.id, candidates), _c.due_at.is_not(None), may_start)
            .order_by(_c.id)
            .limit(self._most)
        )
        if self._database.can_skip_locked(connection):
            heads = heads.with_for_update(skip_locked=True)
        return {row.id: row for row in connection.execute(heads)} if candidates != [] else {}

    def _list_runs(
        self, connection: Connection, heads: Sequence[int], depth: int
    ) -> dict[int | None, list[int]]:
        """By key as many rows from its head on as one sender may send in their order."""
        rows = connection.execute(select_runs(connection, heads, depth))
        by_key: dict[int | None, list[Any]] = defaultdict(list)
        for row in rows:
            by_key[row.ordering_key].append(row)
        runs = {
            ordering_key: [row.id for row in takewhile(lambda row: row.free, run)]
            for ordering_key, run in by_key.items()
        }
        if not self._database.can_skip_locked(connection):
            return runs
        # Who holds a row of the middle open ends its key's run, and holds up nobody else.
        ids = sorted(id_ for run in runs.values() for id_ in run)
        free: set[int] = set()
        for part in split_ids(ids):
            locking = select(_c.id).where(is_one_of(connection, _c.id, part)).order_by(_c.id)
            locked = connection.execute(locking.with_for_update(skip_locked=True))
            free.update(locked.scalars())
        return {
            ordering_key: list(takewhile(free.__contains__, run))
            for ordering_key, run in runs.items()
        }

    def _take(self, connection: Connection, ids: Sequence[int], token: str) -> list[Message]:
        """Takes what is free still: a conditional UPDATE decides, with SKIP LOCKED or without."""
        values = {
            "state": str(State.IN_PROGRESS),
            "owner": self._owner,
            "token": token,
            "due_at": clock_ms() + self._lease_ms,
        }
        for part in split_ids(ids):
            connection.execute(
                update(messages)
                .where(is_one_of(connection, _c.id, part), IS_FREE, _c.due_at < NEVER)
                .values(**values)
            )
        rows: list[Message] = []
        for part in split_ids(ids):
            taken = connection.execute(
                READ.where(is_one_of(connection, _c.id, part), _c.token == token)
            )
            rows += [read_row(row) for row in taken]
        return rows

    def _update(self, held: Collection[Message], change: Change) -> int:
        """Changes those of the rows that are still held."""
        by_token: dict[str, list[int]] = defaultdict(list)
        for message in held:
            by_token[message.token].append(message.id)
        changed = 0
        with self._database.begin() as connection:
            for token, ids in by_token.items():
                for part in split_ids(ids):
                    done = connection.execute(change(connection, part).where(_c.token == token))
                    changed += done.rowcount
        return changed


def _to_ms(length: timedelta) -> int:
    return int(length.total_seconds() * 1_000)
