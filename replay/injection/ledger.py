"""The Kafka ledger for a recovery: which chunks are committed, and by which one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from backlogctl.clock import Deadline
from backlogctl.config import Stream, StreamSource
from backlogctl.errors import BacklogError, ConfigurationError, Paused, PlanStale, Refused
from backlogctl.formats import format_plural
from backlogctl.kafka.errors import TopicMissing
from backlogctl.replay.engine.archives import ARCHIVE, find_source_archive
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.injection.archived import name_redrive
from backlogctl.replay.injection.plan import ALLOW_LEDGER, InjectionPlan
from backlogctl.spark_backfill.injection.ledger_topic import (
    check_ledger,
    ensure_ledger_topic,
    read_committed_chunks,
    snapshot_ledger,
)
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.values import ChunkState, GapState, OffsetRange, Recovery, RecoveryState

if TYPE_CHECKING:
    from backlogctl.replay.injection.context import InjectionContext
    from backlogctl.spark_backfill.injection.job import InjectionJob
    from backlogctl.spark_backfill.injection.newer import PlannedLog
    from backlogctl.spark_backfill.request import PriorChunk


# Where in a topic earlier recoveries put messages, and what of that its group lost again.


def locate_chunks(
    workspace: Workspace, prior: Sequence[PriorChunk], topic_id: str, group: str
) -> tuple[PriorChunk, ...]:
    """The chunks with their offsets, where the SQL ledger knows them and the topic is the same.

    Raises:
        Refused: a plan of an earlier recovery cannot be read.
    """
    located = {(chunk.recovery_id, chunk.slot, chunk.number): chunk for chunk in prior}
    ids = {chunk.recovery_id for chunk in prior}
    for recovery in workspace.ledger.recoveries.list() if ids else ():
        plan = workspace.plan_of(recovery) if recovery.id in ids else None
        if not isinstance(plan, InjectionPlan):
            continue
        if topic_id != plan.target_id:
            continue
        for record in workspace.ledger.chunks.list(recovery.id):
            place = (recovery.id, record.chunk.slot, record.chunk.number)
            if place in located:
                # Which were left out, the Kafka ledger alone knows.
                known = len(located[place].left_out) == record.left_out
                located[place] = replace(
                    located[place],
                    count=record.sent,
                    first_offset=record.first_offset if known else None,
                    last_offset=record.last_offset if known else None,
                    same_group=plan.delivers and recovery.group == group,
                    archive=find_source_archive(recovery.plan),
                )
    return tuple(located.values())


@dataclass(frozen=True, slots=True)
class Lost:
    """What a group lost of a topic: of what was put back there, that is put back again.

    `told` says why some of it is left out, `cautions` what may be too much; one sentence each.
    """

    ranges: tuple[OffsetRange, ...] = ()
    told: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def find_lost_ranges(
    workspace: Workspace,
    stream: Stream,
    topic_id: str,
    prior: Sequence[PriorChunk],
    source: str | None = None,
) -> Lost:
    """What the group has lost of the topic, and no archive holds.

    What an archive holds is put back from there: from elsewhere it would come twice. What a rebuild
    put back has its id in a later chunk, so a gap that it closed is in nobody's way.

    Args:
        prior: with their offsets.
        source: the archive that is read.
    """
    known = [
        (gap, OffsetRange(gap.partition, gap.start, gap.end))
        for gap in workspace.ledger.gaps.list_lost(stream.name)
        if (gap.group, gap.topic_id) == (stream.group, topic_id)
        and gap.start is not None
        and gap.end is not None
    ]
    gaps = [place for _, place in known]
    still = [(gap, place) for gap, place in known if gap.state is not GapState.VERIFIED]
    bounded = [place for gap, place in still if gap.may_be_read]
    archives = {
        record.recovery_id: [OffsetRange(r.partition, r.start, r.end) for r in record.ranges]
        for record in workspace.ledger.archives.list(with_purged=False)
        if record.topic_id == topic_id
    }
    own = archives.pop(source, []) if source else []
    held = {name: subtract_ranges(ranges, own) for name, ranges in archives.items()}
    elsewhere = [item for ranges in held.values() for item in ranges]
    places = _list_places(prior)
    ours = intersect_ranges([place for _, place in still], places)
    waiting = [name for name, ranges in held.items() if intersect_ranges(ours, ranges)]
    unsure = subtract_ranges(intersect_ranges(bounded, places), elsewhere)
    return Lost(
        subtract_ranges(gaps, elsewhere),
        tuple(_say_waiting(name, stream.name) for name in waiting),
        (_say_unsure(sum(item.count for item in unsure), stream.group),) if unsure else (),
    )


def _list_places(prior: Sequence[PriorChunk]) -> list[OffsetRange]:
    """Where in the log messages were put back for the group."""
    return [
        OffsetRange(chunk.slot, chunk.first_offset, chunk.last_offset + 1)
        for chunk in prior
        if chunk.same_group and chunk.first_offset is not None and chunk.last_offset is not None
    ]


def _say_unsure(count: int, group: str) -> str:
    return (
        f"what was put back before at up to {format_plural(count, 'offset')} counts as lost and "
        f"comes again, and group {group} may have read it: the gap is bounded, not exact"
    )


def _say_waiting(archive: str, stream: str) -> str:
    return (
        f"messages that were put back before were offloaded since, unread: archive {archive} has "
        f"them, and `{name_redrive(stream, f'{ARCHIVE}:{archive}')}` puts them back"
    )


def intersect_ranges(
    ranges: Iterable[OffsetRange], others: Sequence[OffsetRange]
) -> tuple[OffsetRange, ...]:
    """What lies in one of both."""
    return tuple(
        OffsetRange(item.partition, max(item.start, other.start), min(item.end, other.end))
        for item in ranges
        for other in others
        if item.partition == other.partition and item.start < other.end and other.start < item.end
    )


def subtract_ranges(
    ranges: Iterable[OffsetRange], others: Sequence[OffsetRange]
) -> tuple[OffsetRange, ...]:
    """What of the first lies in none of the others."""
    left: list[OffsetRange] = []
    for item in ranges:
        start = item.start
        for other in sorted(intersect_ranges([item], others), key=lambda part: part.start):
            if start < other.start:
                left.append(OffsetRange(item.partition, start, other.start))
            start = max(start, other.end)
        if start < item.end:
            left.append(OffsetRange(item.partition, start, item.end))
    return tuple(left)


LEDGER_MADE = "ledger topic made"


def freeze_ledger(
    workspace: Workspace,
    stream: Stream,
    allow: Collection[str] = (),
    topic: str = "",
    topic_id: str = "",
) -> tuple[LedgerSnapshot | None, tuple[PriorChunk, ...]]:
    """The Kafka ledger for a plan, and the chunks of this topic that it says are committed.

    None where the ledger topic is not there yet: a plan makes nothing, the first run makes it.

    Args:
        topic: that gets the messages; "" for the stream's own.
        topic_id: of a topic that is not the stream's: what went into one of its name that was
            deleted since is not there. "" takes all: the group may have read it.
        allow: with `ledger`, what the lost ledger of earlier recoveries said is taken from its
            copy in SQL, which lacks what was committed just before a crash.

    Raises:
        Refused: earlier recoveries put messages back, and their ledger is gone or another one.
    """
    from backlogctl.spark_backfill.request import PriorChunk

    properties, name = workspace.properties(stream), workspace.config.kafka_ledger.topic
    topic = topic or stream.topic
    snapshot: LedgerSnapshot | None = None
    prior: dict[tuple[str, int, int], tuple[int, ...]] = {}
    known: set[tuple[str, int, int]] = set()
    try:
        snapshot = snapshot_ledger(properties, name, Deadline(30))
    except TopicMissing:
        pass
    else:
        committed = read_committed_chunks(properties, snapshot, topic)
        known = {(one.recovery, one.slot, one.chunk) for one in committed}
        # One that sent nothing is nowhere.
        sent = (one for one in committed if one.sent)
        prior |= {(one.recovery, one.slot, one.chunk): one.left_out for one in sent}
    orphans = find_orphans(workspace, stream.cluster, topic, snapshot, known)
    unsure = _list_unsure(workspace, stream.cluster, topic, orphans)
    if unsure and ALLOW_LEDGER not in allow:
        raise _refuse_lost_ledger(topic, name, unsure, exists=snapshot is not None)
    for recovery_id in orphans:
        copied = ((recovery_id, *place) for place in _list_recorded(workspace, recovery_id))
        prior |= {place: () for place in copied if place not in known}
    gone = _list_gone(workspace, {item[0] for item in prior}, topic_id)
    return snapshot, tuple(
        PriorChunk(*place, left_out=left_out)
        for place, left_out in sorted(prior.items())
        if place[0] not in gone
    )


def _list_gone(workspace: Workspace, ids: Collection[str], topic_id: str) -> set[str]:
    """The recoveries that put messages into another topic, as their plans say. What no plan says
    counts as put back: it could be sent twice."""
    gone: set[str] = set()
    for recovery in workspace.ledger.recoveries.list() if topic_id and ids else ():
        if recovery.id not in ids:
            continue
        try:
            plan = workspace.plan_of(recovery)
        except BacklogError:
            continue
        if isinstance(plan, InjectionPlan) and plan.target_id not in (None, topic_id):
            gone.add(recovery.id)
    return gone


def find_orphans(
    workspace: Workspace,
    cluster: str,
    topic: str,
    snapshot: LedgerSnapshot | None,
    known: Collection[tuple[str, int, int]],
) -> tuple[str, ...]:
    """Recoveries that put messages into this topic by another Kafka ledger than this one, or of
    which it has lost records.

    Args:
        known: recovery, slot and number of the chunks that it says are committed.
    """
    orphans: list[str] = []
    for recovery in workspace.ledger.recoveries.list():
        if not _may_have_injected(workspace, recovery, cluster, topic):
            continue
        used = find_ledger(workspace, recovery)
        if used is None and not recovery.injected:
            continue
        is_other = snapshot is None or used is None or used.topic_id != snapshot.topic_id
        recorded = () if is_other else _list_recorded(workspace, recovery.id)
        if is_other or any((recovery.id, *place) not in known for place in recorded):
            orphans.append(recovery.id)
    return tuple(orphans)


def _may_have_injected(workspace: Workspace, recovery: Recovery, cluster: str, topic: str) -> bool:
    """Whether it began to put messages into the topic.

    Raises:
        Refused: it ran, and this program does not know whether its kind does that.
    """
    if recovery.cluster != cluster:
        return False
    known = recovery.kind in workspace.kinds.names()
    if recovery.topic != topic and not (known and workspace.kind_of(recovery).traits.injects):
        return False
    # The count is a copy: a run that was killed may have sent what it does not say.
    begun = bool(recovery.injected) or _has_run(workspace, recovery)
    if not begun or not workspace.kind_of(recovery).traits.injects:
        return False
    return _read(workspace, recovery).target_topic == topic


def _has_run(workspace: Workspace, recovery: Recovery) -> bool:
    events = workspace.ledger.events.list(recovery.id)
    return any(event.action == RecoveryState.RUNNING.value for event in events)


def _list_unsure(
    workspace: Workspace, cluster: str, topic: str, orphans: Collection[str]
) -> list[str]:
    """Of those that lost their Kafka ledger, the ones planned after the newest verified recovery of
    the topic that was planned on the copy in SQL: by that one the loss was known."""
    found: list[str] = []
    for recovery in workspace.ledger.recoveries.list() if orphans else ():  # in that order
        accepts = (
            recovery.state is RecoveryState.VERIFIED
            and _may_have_injected(workspace, recovery, cluster, topic)
            and ALLOW_LEDGER in workspace.plan_of(recovery).allowed
        )
        if recovery.id in orphans:
            found.append(recovery.id)
        if accepts:
            found.clear()
    return found


def _refuse_lost_ledger(
    topic: str, name: str, orphans: Collection[str], *, exists: bool
) -> Refused:
    what = "is another one now, or has lost records" if exists else "is gone"
    return Refused(
        f"the Kafka ledger that says what {', '.join(orphans)} put into topic {topic} "
        f"{what}: those messages could be sent twice",
        subject=f"topic {name}",
        hint="name the right one in `kafka_ledger.topic`; if it was deleted, "
        f"`--allow {ALLOW_LEDGER}` plans on its copy in SQL, which may lack the last chunks "
        "before a crash",
    )


def open_ledger_topic(workspace: Workspace, stream: Stream, recovery: Recovery) -> LedgerSnapshot:
    """The Kafka ledger for a run: the plan's, or the one that the first run made.

    A ledger that was made after the plan is put on record before anything is sent, so that a
    later run of this recovery knows whether it still is the same.

    Raises:
        PlanStale, Refused: it is no longer the one that the plan was made on.
    """
    properties = workspace.properties(stream)
    snapshot = find_ledger(workspace, recovery)
    if snapshot is not None:
        check_ledger(properties, snapshot, Deadline(30))
        return snapshot
    section = workspace.config.kafka_ledger
    topic_id = ensure_ledger_topic(
        properties,
        section.topic,
        partitions=section.partitions,
        replication=section.replication,
        deadline=Deadline(60),
    )
    now = snapshot_ledger(properties, section.topic, Deadline(30))
    # It was not there when the plan was made, so whatever it holds came after.
    made = LedgerSnapshot(now.topic, topic_id, now.partitions, {})
    actor = str(find_identity())
    workspace.ledger.events.append(recovery.id, actor, LEDGER_MADE, made.to_json())
    return made


def find_ledger(workspace: Workspace, recovery: Recovery) -> LedgerSnapshot | None:
    """The Kafka ledger of a recovery: its plan's, or the one that an earlier run of it made."""
    planned: LedgerSnapshot | None = _read(workspace, recovery).ledger_topic
    if planned is None:
        for event in workspace.ledger.events.list(recovery.id):
            if event.action == LEDGER_MADE:
                return LedgerSnapshot.from_json(event.detail)
    return planned


def find_properties(workspace: Workspace, recovery: Recovery) -> dict[str, str]:
    """Client properties of a recovery's cluster, secrets revealed.

    Raises:
        ConfigurationError: the configuration has no cluster of that name any more.
    """
    cluster = workspace.config.clusters.get(recovery.cluster)
    if cluster is None:
        raise ConfigurationError(
            f"recovery {recovery.id} was planned on it, and the configuration does not name it",
            subject=f"cluster {recovery.cluster}",
            hint=f"name the cluster `{recovery.cluster}` again under `clusters`",
        )
    return cluster.client_properties()


def find_prefix(workspace: Workspace, plan: InjectionPlan) -> str:
    """What the transactional ids start with, as the plan froze it."""
    return plan.transactional_prefix or workspace.config.kafka_ledger.transactional_prefix


def fence_recovery(workspace: Workspace, recovery: Recovery) -> None:
    """Fences every producer that could still write for this recovery.

    Where its Kafka ledger is gone no slot gets a closing record: there is nothing to write it to,
    and a runner that wakes up finds the ledger gone and sends nothing.

    Raises:
        ConfigurationError: its cluster is not in the configuration.
        KafkaFailure, ClusterUnreachable: not every slot is fenced.
    """
    from backlogctl.spark_backfill.injection.transactional import fence_slots

    plan, properties = _read(workspace, recovery), find_properties(workspace, recovery)
    ledger = find_ledger(workspace, recovery)
    if ledger is not None:
        try:
            check_ledger(properties, ledger, Deadline(30))
        except PlanStale as stale:
            ledger = None
            detail = {"code": stale.code, "message": stale.message}
            actor = str(find_identity())
            workspace.ledger.events.append(recovery.id, actor, "fenced without a record", detail)
        except Refused:
            pass  # the same topic, with another clean-up: the closing records still help
    fence_slots(
        properties,
        find_prefix(workspace, plan),
        plan.target_topic,
        plan.slots,
        recovery_id=recovery.id,
        ledger=ledger,
    )


def make_job(context: InjectionContext) -> InjectionJob:
    """What the stored plan says, as the injection takes it.

    `open_ledger_topic` must have been called before.
    """
    from backlogctl.spark_backfill.injection.job import InjectionJob

    recovery, plan = context.recovery, context.plan
    if context.ledger_topic is None:
        raise RuntimeError("the Kafka ledger was not opened")
    return InjectionJob(
        recovery_id=recovery.id,
        topic=plan.target_topic,
        topic_id=context.target_id,
        partitions=plan.target_partitions,
        plan_hash=recovery.plan_hash,
        manifest=context.manifest,
        directory=context.directory,
        properties=context.workspace.properties(context.stream),
        ledger=context.ledger_topic,
        start_offsets=plan.topic_end_offsets,
        group=recovery.group if plan.delivers else None,
        messages_per_second=plan.limits.messages_per_second,
        prefix=find_prefix(context.workspace, plan),
        recorded=frozenset(_list_recorded(context.workspace, recovery.id)),
    )


def _list_recorded(workspace: Workspace, recovery_id: str) -> set[tuple[int, int]]:
    """Slot and number of the chunks that the copy in SQL says are committed."""
    return {
        (record.chunk.slot, record.chunk.number)
        for record in workspace.ledger.chunks.list(recovery_id)
        if record.state is ChunkState.INJECTED
    }


def find_planned_log(context: InjectionContext) -> PlannedLog | None:
    """Where states of rows go into their own topic, and something is left to send: up to where the
    plan has read that, and which rows are gone since.

    Raises:
        SourceError: the table could not be asked.
        Paused: too many of its rows are gone.
    """
    from backlogctl.spark_backfill.injection.newer import PlannedLog, list_staged
    from backlogctl.spark_backfill.messages.rules import RESTATED

    origin, source = context.manifest.origin, context.stream.source
    if source is None or origin.get("fidelity") != RESTATED or not context.plan.delivers:
        return None
    chunks = context.workspace.ledger.chunks.list(context.recovery.id)
    if all(record.state is ChunkState.INJECTED for record in chunks):
        return None
    ends = {int(partition): end for partition, end in origin["log_end"].items()}
    header = source.identity.header
    staged = list_staged(context.directory, context.manifest, header)
    gone = _find_gone(context, source, sorted(frozenset[bytes]().union(*staged.values())))
    context.record("rows asked for", gone="unknown" if gone is None else len(gone))
    return PlannedLog(ends, header, gone or frozenset())


def _find_gone(
    context: InjectionContext, source: StreamSource, identities: Sequence[bytes]
) -> frozenset[bytes] | None:
    """The identities whose rows are not in the table now; None where a message's identity is not
    the column of its row as it is."""
    from backlogctl.spark_backfill.evidence.consumed import open_source
    from backlogctl.spark_backfill.proof import find_gone_rows

    name, header = source.identity.row.column, source.identity.header
    key = source.message.key
    told = (key.column if key else None) if header is None else source.message.headers.get(header)
    if name is None or name != told:
        return None
    sources = context.workspace.config.sources
    with open_source(context.spark, sources, context.stream.name, source) as access:
        gone = find_gone_rows(access, name, identities)
    if gone and len(gone) > max(_FEW_GONE, len(identities) * _SHARE_GONE):
        raise Paused(
            f"{len(gone)} of {len(identities)} rows that it restates are not there now: they were "
            "deleted, or the table is being filled; nothing more was sent",
            subject=f"table {source.table} of {source.database}",
            hint="if it is being filled, run it again later; else cancel it, and plan again",
        )
    return gone


# More rows than these are not gone one by one.
_FEW_GONE, _SHARE_GONE = 10, 0.1


def _read(workspace: Workspace, recovery: Recovery) -> InjectionPlan:
    return cast("InjectionPlan", workspace.plan_of(recovery))
