"""The overview: every stream, worst first; other groups that are not well; recoveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlog.config import Config
from backlog.errors import LedgerError
from backlog.ledger import Ledger
from backlog.values import Recovery
from monitoring.board import BoardState, Checkup
from monitoring.status import GroupStatus
from monitoring.verdicts import Verdict
from replay.console.deliveries.looks import DeliveryLook
from replay.console.page.deliveries import DeliveryRow, list_rows
from replay.console.page.statuses import NextCommand, Statuses, StreamView
from replay.recovery.states import ACTIVE

MOST_GROUPS = 20
MOST_RECOVERIES = 20
FINISHED_SINCE = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """A recovery in a list; `command` is "" where nothing is to be done."""

    recovery: Recovery
    command: str


@dataclass(frozen=True, slots=True)
class Overview:
    """All that the first page shows.

    Attributes:
        counts: how many streams have each verdict, worst first.
        groups: of groups that are no stream's and not ok, worst first; `more_groups` are left out.
        blind: clusters whose groups cannot be listed, and why.
        deliveries: outboxes and look-back, worst first; none where none is configured.
        tool: what the doctor found about the tool itself; None before its first look.
        unseen: of clusters what may not be read, and the command that tells what grants it.
        ledger_error: why the ledger does not answer; None where it does.
    """

    streams: tuple[StreamView, ...]
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


def read_overview(
    ledger: Ledger,
    config: Config,
    statuses: Statuses,
    next_command: NextCommand,
    now: datetime,
    deliveries: Sequence[DeliveryLook] = (),
) -> Overview:
    """Reads it; a ledger that does not answer leaves what the board knows."""
    recoveries: tuple[Recovery, ...] = ()
    failed: LedgerError | None = None
    try:
        recoveries = _list_recoveries(ledger, now)
        views = _view_streams(config, statuses, recoveries, next_command)
    except LedgerError as error:
        failed = error
        views = tuple(
            statuses.view(stream, ledger_answers=False) for stream in config.streams.values()
        )
    views = tuple(sorted(views, key=lambda view: (*(-n for n in view.urgency), view.name)))
    groups = find_troubled(statuses.seen)
    passes = statuses.seen.clusters.values()
    newest = sorted(recoveries, key=lambda one: (one.state in ACTIVE, one.created_at), reverse=True)
    return Overview(
        streams=views,
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


def _view_streams(
    config: Config,
    statuses: Statuses,
    recoveries: tuple[Recovery, ...],
    next_command: NextCommand,
) -> tuple[StreamView, ...]:
    commands: Mapping[str, str] = {one.id: next_command(one) for one in recoveries}
    return tuple(
        statuses.view(
            stream,
            tuple(one for one in recoveries if one.stream == stream.name and one.state in ACTIVE),
            commands,
        )
        for stream in config.streams.values()
    )
