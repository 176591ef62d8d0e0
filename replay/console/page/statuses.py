"""The status of each stream: from the board where there is one, else from the ledger's samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from backlog.config import Config, Stream
from backlog.ledger import Ledger
from backlog.values import Recovery, RecoveryState
from monitoring.board import Board, BoardState, Checkup, MemberLook, SequenceLook
from monitoring.doctor.finding import Finding
from monitoring.looking import judge_stored
from monitoring.status import GroupStatus
from monitoring.stopped import with_stopped_warning
from monitoring.verdicts import Verdict
from replay.console.page.words import is_stale

NextCommand = Callable[[Recovery], str]


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream as the page shows it.

    Attributes:
        status: None where nobody has looked at it yet.
        failing: why the last look failed; "" where it did not.
        commands: what to type next, the most urgent first; none where nothing is to be done.
        checkup: what the doctor found; None before its first look.
        members: of the group, where somebody has to look at it.
        sequence: None where its numbers are not looked at, or not yet.
    """

    name: str
    cluster: str
    topic: str
    group: str
    status: GroupStatus | None
    failing: str = ""
    stale: bool = False
    commands: tuple[str, ...] = ()
    recoveries: tuple[Recovery, ...] = field(default=())
    checkup: Checkup | None = None
    members: tuple[MemberLook, ...] | None = None
    sequence: SequenceLook | None = None

    @property
    def pressing(self) -> tuple[Finding, ...]:
        """What the doctor found that loses messages or stops a recovery."""
        findings = () if self.checkup is None else self.checkup.findings
        return tuple(one for one in findings if one.needs_somebody)

    @property
    def verdict(self) -> Verdict:
        """Its verdict; `unknown` where there is no status."""
        if self.status is None:
            return Verdict.UNKNOWN
        return self.status.verdict

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Sorts the page, the greatest first: by severity, by time to loss, by lag."""
        severity = self.verdict.severity
        if self.failing or self.stale:
            severity = max(severity, Verdict.UNKNOWN.severity)
        loss = None if self.status is None else self.status.seconds_to_loss
        lag = (self.status.lag or 0) if self.status else 0
        return severity, -(float("inf") if loss is None else loss), lag


class StoredStatuses:
    """Judges the ledger's samples; again only when there is a new one, or a gap changed."""

    def __init__(self, ledger: Ledger, config: Config) -> None:
        self._ledger = ledger
        self._config = config
        self._known: dict[str, tuple[object, GroupStatus | None]] = {}

    def find(self, stream: Stream, now: datetime) -> GroupStatus | None:
        """None where there is no sample.

        Raises:
            LedgerError.
        """
        newest = self._ledger.samples.latest(stream.name)
        if newest is None:
            return None
        key = (newest, self._ledger.gaps.list(stream.name))
        known = self._known.get(stream.name)
        if known is None or known[0] != key:
            known = (key, judge_stored(self._ledger, stream, self._config.watch, now))
            self._known[stream.name] = known
        # Not kept: it changes without a new sample.
        return None if known[1] is None else with_stopped_warning(self._ledger, known[1])


class Statuses:
    """Reads statuses for one request."""

    def __init__(
        self, stored: StoredStatuses, config: Config, board: Board | None, now: datetime
    ) -> None:
        self._stored = stored
        self._config = config
        self._seen = BoardState() if board is None else board.seen
        self._now = now

    @property
    def seen(self) -> BoardState:
        """The board as it was when the request came."""
        return self._seen

    def find(self, stream: Stream, *, ledger_answers: bool = True) -> GroupStatus | None:
        """A stream's status; None where nobody looked at it yet.

        Raises:
            LedgerError.
        """
        found = self._seen.streams.get(stream.name)
        if found is not None or not ledger_answers:
            return found
        return self._stored.find(stream, self._now)

    def view(
        self,
        stream: Stream,
        recoveries: tuple[Recovery, ...] = (),
        commands: Mapping[str, str] | None = None,
        *,
        ledger_answers: bool = True,
    ) -> StreamView:
        """A stream with all that the overview says about it.

        Args:
            recoveries: the stream's active ones.
            commands: the next command of each of them, by id.
        """
        status = self.find(stream, ledger_answers=ledger_answers)
        stale = status is not None and is_stale(
            status.taken_at, self._now, self._config.watch.interval
        )
        return StreamView(
            name=stream.name,
            cluster=stream.cluster,
            topic=stream.topic,
            group=stream.group,
            status=status,
            failing=self._seen.failing.get((stream.cluster, stream.name), ""),
            stale=stale,
            commands=choose_commands(stream.name, status, recoveries, commands or {}, self._now),
            recoveries=recoveries,
            checkup=self._seen.checkups.get(stream.name),
            members=self._seen.members.get(stream.name),
            sequence=self._seen.sequences.get(stream.name),
        )


def choose_commands(
    stream: str,
    status: GroupStatus | None,
    recoveries: tuple[Recovery, ...],
    commands: Mapping[str, str],
    now: datetime,
) -> tuple[str, ...]:
    """What on-call would type next about a stream; none where nothing needs it.

    Messages that will be lost come before a recovery, unless that is what drains them right now.
    """
    urgent: tuple[str, ...] = ()
    if status is not None and Verdict.LOSING in (status.verdict, status.course):
        urgent = status.next_commands[:1]
        if any(_is_draining(recovery, now) for recovery in recoveries):
            urgent = ()
    for recovery in recoveries:
        if command := commands.get(recovery.id):
            return (*urgent, command)
    if status is None:
        return (f"backlogctl status {stream}",)
    return status.next_commands[:1]


def shorten_commands(
    next_commands: Callable[[Recovery], list[str]], clock: Callable[[], datetime]
) -> NextCommand:
    """One command of a recovery; for one that somebody runs right now, how to watch it."""

    def choose(recovery: Recovery) -> str:
        if recovery.state is RecoveryState.RUNNING and has_runner(recovery, clock()):
            return f"backlogctl show {recovery.id} --watch"
        return next(iter(next_commands(recovery)), "")

    return choose


def has_runner(recovery: Recovery, now: datetime) -> bool:
    """Whether somebody runs it right now."""
    return recovery.lease_until is not None and recovery.lease_until > now


def _is_draining(recovery: Recovery, now: datetime) -> bool:
    return (
        has_runner(recovery, now)
        and recovery.stops_consumers
        and recovery.state is RecoveryState.RUNNING
    )
