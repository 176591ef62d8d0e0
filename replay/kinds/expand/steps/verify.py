"""Step 9: what was relayed is what was written and handled; the group moves (protocol P4.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backlog.clock import Deadline
from backlog.errors import VerificationFailed
from backlog.kafka.standing import read_standing
from backlog.numbers import format_plural
from backlog.step import Step
from fanout.unread import count_records
from replay.around.movement import await_movement
from replay.kinds.expand.context import SOURCE_GONE, ExpandContext
from replay.kinds.expand.outsiders import SKIPPED, list_moved
from replay.kinds.expand.topics import ASK_SECONDS


class Verify(Step[ExpandContext]):
    """Counts the temporary topic by reading it, and watches the original group."""

    name = "verify"

    def start(self, context: ExpandContext) -> None:
        """Reads, compares, watches.

        Raises:
            VerificationFailed: says what differs; the temporary topic is kept.
            PlanStale: somebody deleted it.
        """
        found: dict[str, Any] = {"relayed": 0, "written": 0}
        if not context.cancelling:
            context.check_copy()
        if context.has_copy():
            found = _compare(context)
        has_consumers = context.was_started("stop_consumers") and not context.leaves_consumers
        if has_consumers and context.has_source():
            await_movement(context)
        context.details[self.name] = found
        context.found["verified"] = found
        context.found["counts"] = {
            "relayed": found["relayed"],
            "handled": found["written"],
            "drained_per_second": _measure_drain(context),
        }
        _refuse_skipped(context)


def _refuse_skipped(context: ExpandContext) -> None:
    """What was never relayed nor handled is no success, though the layout is as it was."""
    skipped = [item for item in list_moved(context) if item.what == SKIPPED]
    if not skipped or context.cancelling:
        return
    many = format_plural(sum(item.end - item.start for item in skipped), "message")
    raise VerificationFailed(
        f"at most {many} were never handled: somebody set the group's offsets past them while the "
        "recovery was at work; they are a gap on record",
        subject=f"group {context.recovery.group} on topic {context.recovery.topic}",
        hint=f"all else is handled, and the layout is as it was: `backlogctl cancel "
        f"{context.recovery.id}` closes this recovery, then `backlogctl plan rebuild "
        f"{context.stream.name}`",
    )


def _compare(context: ExpandContext) -> dict[str, Any]:
    topic = context.temporary_topic
    step = context.workspace.ledger.steps.get(context.recovery.id, "cut_over")
    detail: Mapping[str, Any] = {} if step is None else step.detail
    relayed = {int(n): int(count) for n, count in detail.get("relayed", {}).items()}
    placed = detail.get("placed")
    numbers, group = range(context.temporary_partitions), context.recovery_group
    found = context.ask(
        lambda: read_standing(context.admin, group, topic, numbers, Deadline(ASK_SECONDS))
    )
    written = count_records(context.properties, topic, found.ends, context.look)
    total = sum(relayed.values())
    events = context.workspace.ledger.events.list(context.recovery.id)
    if any(event.action == SOURCE_GONE for event in events):
        # The counters went with the source: only the temporary topic can be counted.
        total, placed = sum(written.values()), None
    if total != sum(written.values()):
        raise _fail(topic, f"{total} messages were relayed, and {sum(written.values())} are there")
    if placed is not None:
        wanted = {int(n): int(count) for n, count in placed.items()}
        wrong = {n: (wanted.get(n, 0), at) for n, at in written.items() if wanted.get(n, 0) != at}
        if wrong:
            told = ", ".join(f"{n}: {a} relayed, {b} there" for n, (a, b) in sorted(wrong.items()))
            raise _fail(topic, f"partitions differ ({told})")
    unread = context.find_unread()
    if unread or not context.is_drained():
        raise _fail(topic, f"messages are unread in partitions {sorted(unread)}")
    return {
        "relayed": total,
        "written": sum(written.values()),
        "partitions": {str(number): count for number, count in sorted(relayed.items())},
        "temporary_partitions": {str(n): count for n, count in sorted(written.items())},
    }


def _measure_drain(context: ExpandContext) -> float | None:
    """Messages a second over the drain, from the samples."""
    samples = [
        sample
        for sample in context.workspace.ledger.burndown.list(context.recovery.id)
        if sample.step in ("drain", "cut_over")
    ]
    step = context.workspace.ledger.steps.get(context.recovery.id, "drain")
    if len(samples) < 2 or step is None or step.attempts > 1:
        return None  # with pauses in between it would say nothing
    done = next((s for s in samples if not s.source_lag + s.temporary_lag), samples[-1])
    seconds = (done.at - samples[0].at).total_seconds()
    return round((done.handled - samples[0].handled) / seconds, 1) if seconds > 0 else None


def _fail(topic: str, why: str) -> VerificationFailed:
    return VerificationFailed(
        why,
        subject=f"topic {topic}",
        hint="the temporary topic is kept; compare it with the source before it is deleted",
    )
