"""The overview: every stream, worst first; other groups that are not well; recoveries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from backlogctl.config import Config, Stream
from backlogctl.errors import LedgerError
from backlogctl.ledger import Ledger
from backlogctl.monitoring.doctor.checks import CheckFinding
from backlogctl.monitoring.verdict.commands import is_hold, look_at_stream
from backlogctl.monitoring.verdict.status import GroupStatus, Urgency, Verdict
from backlogctl.monitoring.watch.board import Board, BoardState, Checkup, MemberLook, SequenceLook
from backlogctl.monitoring.watch.look import judge_stored
from backlogctl.monitoring.watch.notes import with_stopped_warning
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import list_stream_commands
from backlogctl.replay.engine.plan import ACTIVE
from backlogctl.replay.present.terminal import SHOWN_WHOLE
from backlogctl.replay.web.deliveries import DeliveryLook
from backlogctl.replay.web.page.delivery_rows import DeliveryRow, list_rows
from backlogctl.replay.web.page.words import is_stale
from backlogctl.values import Recovery

# The status of each stream: from the board where there is one, else from the ledger's samples.

NextCommand = Callable[[Recovery], str]
ListCommands = Callable[[Stream, GroupStatus | None, Sequence[Recovery]], tuple[str, ...]]


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

    stream: Stream
    status: GroupStatus | None
    failing: str = ""
    stale: bool = False
    commands: tuple[str, ...] = ()
    recoveries: tuple[Recovery, ...] = field(default=())
    checkup: Checkup | None = None
    members: tuple[MemberLook, ...] | None = None
    sequence: SequenceLook | None = None

    @property
    def pressing(self) -> tuple[CheckFinding, ...]:
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
    def nearness(self) -> Urgency | None:
        """How near its next loss is."""
        return None if self.status is None else self.status.urgency

    @property
    def is_well(self) -> bool:
        """Whether there is nothing to say of it."""
        told = (self.failing, self.stale, self.commands, self.recoveries, self.pressing)
        status = self.status
        return status is not None and status.verdict is Verdict.OK and not any(told)

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Sorts the page, the greatest first: by severity, by time to loss, by lag."""
        severity = self.verdict.severity
        if self.failing or self.stale:
            severity = max(severity, Verdict.UNKNOWN.severity)
        loss = None if self.status is None else self.status.seconds_to_loss
        lag = (self.status.lag or self.status.lag_at_least or 0) if self.status else 0
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
        self,
        stored: StoredStatuses,
        config: Config,
        board: Board | None,
        now: datetime,
        list_commands: ListCommands,
    ) -> None:
        self._list_commands = list_commands
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
        active: Sequence[Recovery] = (),
        *,
        ledger_answers: bool = True,
    ) -> StreamView:
        """A stream with all that the overview says about it.

        Args:
            active: the recoveries that are not over, of any stream.

        Raises:
            LedgerError.
        """
        status = self.find(stream, ledger_answers=ledger_answers)
        commands = () if status is None else status.next_commands
        if ledger_answers:
            commands = self._list_commands(stream, status, active)
        recoveries = tuple(one for one in active if one.stream == stream.name)
        stale = status is not None and is_stale(
            status.taken_at, self._now, self._config.watch.interval
        )
        return StreamView(
            stream=stream,
            status=None if status is None else replace(status, next_commands=commands),
            failing=self._seen.failing.get((stream.cluster, stream.name), ""),
            stale=stale,
            commands=choose_commands(commands, is_worked_on=bool(recoveries)),
            recoveries=recoveries,
            checkup=self._seen.checkups.get(stream.name),
            members=self._seen.members.get(stream.name),
            sequence=self._seen.sequences.get(stream.name),
        )


def list_commands(
    workspace: Workspace,
    stream: Stream,
    status: GroupStatus | None,
    active: Sequence[Recovery],
) -> tuple[str, ...]:
    """What on-call would type next about a stream, the most urgent first.

    Args:
        status: None where nobody looked at it yet.
        active: the recoveries that are not over, of any stream.

    Raises:
        LedgerError.
    """
    verdict = () if status is None else status.next_commands
    found = list_stream_commands(workspace, stream, verdict, active)
    return found or (() if status else (look_at_stream(stream.name),))


def choose_commands(commands: Sequence[str], *, is_worked_on: bool) -> tuple[str, ...]:
    """The first one; behind one that holds messages back also what a recovery needs."""
    return tuple(commands[: 2 if is_worked_on and commands and is_hold(commands[0]) else 1])


def has_runner(recovery: Recovery, now: datetime) -> bool:
    """Whether somebody runs it right now."""
    return recovery.lease_until is not None and recovery.lease_until > now


MOST_GROUPS = 20
MOST_RECOVERIES = 20
FINISHED_SINCE = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """A recovery in a list; `command` is "" where nothing is to be done."""

    recovery: Recovery
    command: str


def _order_by(value: Callable[[GroupStatus], float | None]) -> Callable[[StreamView], float]:
    """The greatest first; what is not known last."""

    def find(view: StreamView) -> float:
        found = None if view.status is None else value(view.status)
        return float("inf") if found is None else -found

    return find


_SORTS: Mapping[str, Callable[[StreamView], Any]] = {
    "urgency": lambda view: tuple(-number for number in view.urgency),
    "name": lambda view: view.stream.name,
    "lag": _order_by(lambda status: status.lag),
    "lost": _order_by(lambda status: status.lost),
    "age": _order_by(lambda status: status.lag_seconds),
}


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """Which streams are shown, and in which order.

    Attributes:
        text: a part of the name of the stream, its group or its topic, in any case.
        verdict: "" for all.
        sort: a name of `sorts`; the most urgent first where it is none.
    """

    text: str = ""
    verdict: str = ""
    sort: str = ""

    @property
    def sorts(self) -> tuple[str, ...]:
        return tuple(_SORTS)

    @property
    def is_all(self) -> bool:
        """Whether every stream is shown."""
        return not self.text.strip() and self.verdict not in list(Verdict)

    def choose(self, views: Sequence[StreamView]) -> tuple[StreamView, ...]:
        """Those that are shown, in order."""
        text = self.text.strip().casefold()
        found = [
            view
            for view in views
            if any(text in name.casefold() for name in _list_names(view.stream))
            and (self.verdict not in list(Verdict) or view.verdict == self.verdict)
        ]
        sort = _SORTS.get(self.sort, _SORTS["urgency"])
        return tuple(sorted(found, key=lambda view: (sort(view), view.stream.name)))


def _list_names(stream: Stream) -> tuple[str, str, str]:
    return stream.name, stream.group, stream.topic


@dataclass(frozen=True, slots=True)
class Overview:
    """All that the first page shows.

    Attributes:
        choice: which of the streams are shown.
        well: of many, those of which there is nothing to say: folded.
        total: of how many streams.
        counts: how many streams have each verdict, worst first.
        groups: of groups that are no stream's and not ok, worst first; `more_groups` are left out.
        blind: clusters whose groups cannot be listed, and why.
        deliveries: outboxes and look-back, worst first; none where none is configured.
        tool: what the doctor found about the tool itself; None before its first look.
        unseen: of clusters what may not be read, and the command that tells what grants it.
        ledger_error: why the ledger does not answer; None where it does.
    """

    choice: StreamChoice
    streams: tuple[StreamView, ...]
    well: tuple[StreamView, ...]
    total: int
    counts: tuple[tuple[Verdict, int], ...]
    groups: tuple[GroupStatus, ...]
    more_groups: int
    watched_groups: int
    left_out: int
    blind: tuple[tuple[str, str], ...]
    unseen: tuple[tuple[str, str], ...]
    recoveries: tuple[RecoveryRow, ...]
    more_recoveries: int
    deliveries: tuple[DeliveryRow, ...]
    tool: Checkup | None
    ledger_error: LedgerError | None

    @property
    def is_long(self) -> bool:
        """Whether there are so many that one has to choose."""
        return self.total > SHOWN_WHOLE


def read_overview(
    ledger: Ledger,
    config: Config,
    statuses: Statuses,
    next_command: NextCommand,
    now: datetime,
    deliveries: Sequence[DeliveryLook] = (),
    choice: StreamChoice | None = None,
) -> Overview:
    """Reads it; a ledger that does not answer leaves what the board knows."""
    recoveries: tuple[Recovery, ...] = ()
    failed: LedgerError | None = None
    try:
        recoveries = _list_recoveries(ledger, now)
        active = [one for one in recoveries if one.state in ACTIVE]
        views = tuple(statuses.view(stream, active) for stream in config.streams.values())
    except LedgerError as error:
        failed = error
        views = tuple(
            statuses.view(stream, ledger_answers=False) for stream in config.streams.values()
        )
    choice = choice or StreamChoice()
    chosen = choice.choose(views)
    well = chosen if len(chosen) > SHOWN_WHOLE else ()
    well = tuple(view for view in well if view.is_well)
    groups = find_troubled(statuses.seen)
    passes = statuses.seen.clusters.values()
    newest = sorted(recoveries, key=lambda one: (one.state in ACTIVE, one.created_at), reverse=True)
    return Overview(
        choice=choice,
        streams=tuple(view for view in chosen if not (well and view.is_well)),
        well=well,
        total=len(views),
        counts=count_verdicts(views),
        groups=groups[:MOST_GROUPS],
        more_groups=max(0, len(groups) - MOST_GROUPS),
        watched_groups=sum(len([g for g in one.groups if not g.stream]) for one in passes),
        left_out=sum(one.left_out for one in passes),
        blind=tuple(
            (cluster, why)
            for (cluster, stream), why in sorted(statuses.seen.failing.items())
            if not stream
        ),
        unseen=tuple(
            (str(one), _suggest_acl(config, done.cluster)) for done in passes for one in done.unseen
        ),
        recoveries=tuple(
            RecoveryRow(recovery, next_command(recovery)) for recovery in newest[:MOST_RECOVERIES]
        ),
        more_recoveries=max(0, len(newest) - MOST_RECOVERIES),
        deliveries=list_rows(config, deliveries),
        tool=statuses.seen.checkups.get(""),
        ledger_error=failed,
    )


def _suggest_acl(config: Config, cluster: str) -> str:
    names = (name for name, one in config.streams.items() if one.cluster == cluster)
    return f"backlogctl acl see {next(names, 'STREAM')} --principal User:NAME"


def find_troubled(seen: BoardState) -> tuple[GroupStatus, ...]:
    """Groups that no stream is about and that are not ok, worst first."""
    found = [
        group
        for one in seen.clusters.values()
        for group in one.groups
        if not group.stream and group.verdict is not Verdict.OK
    ]
    return tuple(
        sorted(found, key=lambda g: (-g.verdict.severity, -(g.lag or 0), g.cluster, g.group))
    )


def count_verdicts(views: tuple[StreamView, ...]) -> tuple[tuple[Verdict, int], ...]:
    """How many streams have each verdict, worst first; verdicts that none has are left out."""
    counts: dict[Verdict, int] = {}
    for view in views:
        counts[view.verdict] = counts.get(view.verdict, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: -item[0].severity))


def _list_recoveries(ledger: Ledger, now: datetime) -> tuple[Recovery, ...]:
    active = ledger.recoveries.list(states=ACTIVE)
    known = {recovery.id for recovery in active}
    late = ledger.recoveries.list(since=now - FINISHED_SINCE)
    return (*active, *(recovery for recovery in late if recovery.id not in known))
