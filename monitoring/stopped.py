"""A stream whose own consumers a recovery has stopped: its lag alone would say that all is well."""

from __future__ import annotations

from dataclasses import replace

from backlog.ledger import Ledger
from backlog.ledger.steps import has_stopped_consumers
from backlog.numbers import format_moment, format_plural
from backlog.values import Recovery, RecoveryState
from monitoring.status import GroupStatus
from monitoring.verdicts import Verdict, find_worst

_BEGUN = (RecoveryState.RUNNING, RecoveryState.PAUSED, RecoveryState.FAILED)


def with_stopped_warning(ledger: Ledger, status: GroupStatus) -> GroupStatus:
    """The status, never `ok` while a recovery keeps the stream's consumers stopped.

    What was relayed and not handled is read from the source, and so in no lag: `warn` where a
    runner works on it, `stop` where nobody does.

    Raises:
        LedgerError.
    """
    for recovery in ledger.recoveries.list(status.stream, _BEGUN):
        same = (recovery.topic, recovery.group) == (status.topic, status.group)
        if same and recovery.stops_consumers and _is_stopped(ledger, recovery):
            runner = ledger.leases.find_runner(recovery.id)
            least = Verdict.STOP if runner is None else Verdict.WARN
            told = _describe(ledger, recovery, is_at_work=runner is not None)
            show = f"backlogctl show {recovery.id}"
            return replace(
                status,
                verdict=find_worst((status.verdict, least)),
                sentence=f"{status.sentence}; {told}",
                next_commands=tuple(dict.fromkeys((show, *status.next_commands))),
            )
    return status


def _is_stopped(ledger: Ledger, recovery: Recovery) -> bool:
    return has_stopped_consumers(ledger.steps.list(recovery.id))


def _describe(ledger: Ledger, recovery: Recovery, *, is_at_work: bool) -> str:
    told = f"its consumers are stopped by {recovery.kind} {recovery.id}"
    if not is_at_work:
        told += f", which is {recovery.state}, and on which nobody works"
    temporary = ledger.temporary_topics.get(recovery.id)
    if temporary is None or temporary.deleted_at is not None:
        return told
    last = ledger.burndown.latest(recovery.id)
    if last is None:
        return f"{told}; how many messages are only in {temporary.name} is not known"
    many = format_plural(last.temporary_lag, "message")
    return f"{told}; {many} only in {temporary.name} at {format_moment(last.at)}"
