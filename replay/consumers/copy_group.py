"""What a recovery's consumers have really handled of its temporary topic.

The group's commits are the only witness, so it must be known who made them: its consumers, and
nobody who set them forward while no consumer was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.fanout.movers import History, read_commit_history, trace_moves
from backlogctl.fanout.quiet import await_empty
from backlogctl.fanout.relay.commits import Moved
from backlogctl.fanout.unread import count_records
from backlogctl.formats import Say, format_plural
from backlogctl.kafka.admin import (
    delete_group,
    describe_group_state,
    list_offsets,
    read_group_state,
    set_group_offsets,
)
from backlogctl.kafka.clients import Admin
from backlogctl.kafka.groups import Commit, read_commits
from backlogctl.ledger import Ledger
from backlogctl.values import LedgerEvent

# Lines of the record.
REACHED = "the recovery's consumers had come so far"
SET_FORWARD = "the recovery's group was set forward while none of its consumers was there"
UNTOLD = "the recovery's group moved, and by whom is not known"
SET_BACK = "the recovery's group was set back to where its consumers had come"
LEFT, GONE = "the recovery's group is still there", "the recovery's group is deleted"
REWOUND = "the group was set back to where its consumers were stopped"
KEPT, PASSED = "a message is kept, to be passed", "a message was passed"
MOVES = (SET_FORWARD, UNTOLD)
# In the recovery's staging: the messages that were passed.
PASSED_FOLDER = "passed"

# The ledger's clock and the brokers' may differ by so much.
SLACK = timedelta(minutes=5)
GROUP_SECONDS = 15.0
_SECONDS = 30.0
_NOTE_SECONDS = 5.0
_SENTENCES: Mapping[str, str] = {
    SET_FORWARD: "somebody set the offsets of group {group} forward while none of its consumers "
    "was there: {many} of partition {p} of {topic} ({start:,} to {end:,}) were handled by nobody",
    UNTOLD: "the offsets of group {group} moved on partition {p} of {topic} from {start:,} to "
    "{end:,} ({many}) while nobody looked, by commits without a leader epoch: either its consumers "
    "handled them, or somebody skipped them. Who may READ __consumer_offsets is told which "
    "(`backlogctl acl expand {stream}`)",
}


@dataclass
class CopyGroup:
    """The group of a recovery's consumers.

    Attributes:
        record: adds a line to the recovery's record.
        look: called while it waits; may raise.
        stop: ends its consumers.
        within: seconds the group may take to get empty.
        trusts_simple: where nobody ever joined the group, its commits are those of a reader that
            assigns its partitions: one was seen to read.
    """

    ledger: Ledger
    recovery_id: str
    stream: str
    properties: Mapping[str, str]
    admin: Admin
    group: str
    topic: str
    partitions: int
    record: Callable[..., None]
    look: Callable[[], None]
    stop: Callable[[], None]
    within: float
    trusts_simple: Callable[[], bool]
    _seen: dict[int, int] = field(default_factory=dict)
    _was_active: bool = False

    def note(self) -> None:
        """Looks how far its members are: what they committed is theirs where no log tells so."""
        is_active = read_group_state(self.admin, self.group, Deadline(_NOTE_SECONDS)).is_active
        if is_active or self._was_active:
            now = _list_offsets(self._read(_NOTE_SECONDS))
            self._seen = {p: at for p, at in now.items() if at is not None}
        self._was_active = is_active

    def settle(self, say: Say) -> bool:
        """Puts on record what nobody is known to have handled, and sets the group back to there.

        Returns:
            Whether it was set back: its consumers have ended, and messages are unread again.

        Raises:
            GroupActive: it is to be set back, and does not get empty.
        """
        found = self._read()
        now, moved = _list_offsets(found), self._find(found)
        if not moved:
            self._note_reached(now)
            return False
        known = {(m.partition, m.start, m.end) for m in self.list_moves()}
        for item, count in moved:
            if (item.partition, item.start, item.end) in known:
                continue
            place = {"partition": item.partition, "start": item.start, "end": item.end}
            self.record(item.what, **place, messages=count)
            told = {**place, "p": item.partition, "many": format_plural(count, "message")}
            names = {"group": self.group, "topic": self.topic, "stream": self.stream}
            say(_SENTENCES[item.what].format(**told, **names))
        self._set_back([item for item, _ in moved], now, say)
        return True

    def delete(self, say: Say) -> None:
        """At the end; a group that stays is told, does no harm, and goes with the stream's next
        expansion."""
        try:
            delete_group(self.admin, self.group, Deadline(GROUP_SECONDS))
        except BacklogError as error:
            say(
                f"group {self.group} is still there: {error.message}. It is of no more use; the "
                f"next expansion of {self.stream} deletes it"
            )
            self.record(LEFT, group=self.group)

    def note_reached(self) -> None:
        """Where its consumers are goes on record, where that is certain: what is done from now on
        is then known without what the log of commits had before."""
        self.note()
        now = self._read()
        if not self._find(now, by_epoch=False):
            self._note_reached(_list_offsets(now))

    def list_moves(self) -> tuple[Moved, ...]:
        """What is on record of it."""
        return tuple(
            Moved(e.detail["partition"], e.detail["start"], e.detail["end"], e.action)
            for e in self._list_events()
            if e.action in MOVES
        )

    def count_moved(self) -> int:
        """Messages of these, in all."""
        return sum(e.detail["messages"] for e in self._list_events() if e.action in MOVES)

    def list_passed(self) -> Mapping[tuple[int, int], Mapping[str, Any]]:
        """What was passed on purpose, by partition and offset, with what is on record of it."""
        return list_passed(self._list_events())

    def _list_events(self) -> tuple[LedgerEvent, ...]:
        return self.ledger.events.list(self.recovery_id)

    def _read(self, within: float = _SECONDS) -> dict[int, Commit | None]:
        place = (self.admin, self.group, self.topic, range(self.partitions))
        return read_commits(*place, Deadline(within), require_stable=True)

    def _find(
        self, now: Mapping[int, Commit | None], *, by_epoch: bool = True
    ) -> list[tuple[Moved, int]]:
        """What nobody is known to have handled, with how many messages it is.

        Args:
            by_epoch: where the log may not be read, a commit with a leader epoch is enough.
        """
        events = self._list_events()
        known = [e for e in events if e.action in (REACHED, SET_BACK)]
        reached = find_handled(events)
        ends = {p: one.offset for p, one in now.items() if one is not None}
        forward = {p: end for p, end in ends.items() if end > reached.get(p, 0)}
        if not forward:
            return []
        # What somebody deleted is told as that (`KeptCopy`), and can be counted no more.
        lows = list_offsets(self.admin, self.topic, forward, "earliest")
        reached = {p: max(lows[p], reached.get(p, 0)) for p in forward}
        forward = {p: end for p, end in forward.items() if end > reached[p]}
        if not forward:
            return []
        made = self.ledger.steps.get(self.recovery_id, "create_topic")
        if not known and made is None:
            return []
        since = known[-1].at if known or made is None else made.first_started_at
        history = read_commit_history(
            self.admin,
            self.group,
            self.topic,
            since - SLACK,
            ends,
            is_new=not known,
            had_members=known[-1].detail["had_members"] if known else False,
        )
        found = []
        for p, end in sorted(forward.items()):
            one = now[p] if by_epoch else None
            found += self._trace(p, reached[p], end, one, history)
        left = self._finish_passes(self._count(found), events)
        return [] if left and self.trusts_simple() and self._is_simple() else left

    def _is_simple(self) -> bool:
        return describe_group_state(self.admin, self.group, Deadline(_SECONDS)).is_simple

    def _trace(
        self, p: int, start: int, end: int, now: Commit | None, history: History | None
    ) -> list[Moved]:
        if history is None:
            start = max(start, self._seen.get(p, 0))
            is_readers = now is not None and now.epoch is not None
            return [] if is_readers or start >= end else [Moved(p, start, end, UNTOLD)]
        return [
            Moved(p, one.start, one.end, UNTOLD if one.is_read is None else SET_FORWARD)
            for one in trace_moves(start, end, history.get(p))
            if not one.is_read
        ]

    def _count(self, moves: Iterable[Moved]) -> list[tuple[Moved, int]]:
        """Without those that hold no message: control records are passed over by nobody."""
        rest, found = list(moves), []
        while rest:  # one of each partition at a time
            some = {item.partition: item for item in reversed(rest)}
            starts = {p: item.start for p, item in some.items()}
            ends = {p: item.end for p, item in some.items()}
            counts = count_records(self.properties, self.topic, ends, self.look, starts=starts)
            found += [(item, counts[p]) for p, item in some.items() if counts[p]]
            rest = [item for item in rest if item is not some[item.partition]]
        return sorted(found, key=lambda one: (one[0].partition, one[0].start))

    def _finish_passes(
        self, moves: Iterable[tuple[Moved, int]], events: Sequence[LedgerEvent]
    ) -> list[tuple[Moved, int]]:
        """Without the messages that were passed; one whose `pass` was killed is on record now."""
        passed = list_passed(events)
        kept = {(e.detail["partition"], e.detail["offset"]): e for e in events if e.action == KEPT}
        left = []
        for item, count in moves:
            inside = [at for p, at in kept if p == item.partition and item.start <= at < item.end]
            if len(inside) < count:
                left.append((item, count))
                continue
            for at in inside:
                if (item.partition, at) not in passed:
                    self.record(PASSED, **kept[item.partition, at].detail)
        return left

    def _note_reached(self, now: Mapping[int, int | None]) -> None:
        """How far its consumers are, so that the log need not be read from the beginning again."""
        known = [e for e in self._list_events() if e.action in (REACHED, SET_BACK)]
        found = {str(p): at for p, at in now.items() if at}
        if found and (not known or known[-1].detail["offsets"] != found):
            is_active = read_group_state(self.admin, self.group, Deadline(_SECONDS)).is_active
            self.record(REACHED, offsets=found, had_members=is_active)

    def _set_back(self, moves: Iterable[Moved], now: Mapping[int, int | None], say: Say) -> None:
        starts: dict[int, int] = {}
        for item in moves:
            starts[item.partition] = min(item.start, starts.get(item.partition, item.start))
        self.stop()
        await_empty(self.admin, self.group, self.look, within=self.within)
        set_group_offsets(self.admin, self.group, self.topic, starts, Deadline(_SECONDS))
        offsets = {str(p): at for p, at in {**now, **starts}.items() if at}
        self.record(SET_BACK, offsets=offsets, had_members=False)
        self._seen, self._was_active = dict(starts), False
        again = sum((now[p] or 0) - at for p, at in starts.items())
        say(
            f"group {self.group} is set back to where its consumers had come: at most "
            f"{format_plural(again, 'message')} are handled, once more where they were. Who wants "
            "to leave one out says so with `backlogctl pass`"
        )


def find_handled(events: Iterable[LedgerEvent]) -> dict[int, int]:
    """By partition, how far a recovery's consumers are known to have handled its copy."""
    known = [event for event in events if event.action in (REACHED, SET_BACK)]
    return _read_numbers(known[-1]) if known else {}


def list_passed(events: Iterable[LedgerEvent]) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Messages of a temporary topic that were passed, each kept in a file of its own."""
    passed = [event.detail for event in events if event.action == PASSED]
    return {(one["partition"], one["offset"]): one for one in passed}


def _list_offsets(commits: Mapping[int, Commit | None]) -> dict[int, int | None]:
    return {p: None if one is None else one.offset for p, one in commits.items()}


def _read_numbers(event: LedgerEvent) -> dict[int, int]:
    return {int(p): at for p, at in event.detail["offsets"].items()}
