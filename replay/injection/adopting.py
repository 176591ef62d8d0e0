"""Recoveries that the Kafka ledger knows and the SQL ledger does not, or not in full: taken over.

The Kafka ledger says what was put back, the copies beside the staged messages say by which plan.
Nothing is believed that cannot be shown: a plan has the hash that its records carry, the messages
of a chunk that of its record.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backlogctl.clock import Deadline, read_time
from backlogctl.errors import BacklogError, StagingError, UsageError
from backlogctl.formats import format_plural
from backlogctl.kafka.errors import TopicMissing
from backlogctl.manifests import Manifest, name_ids, read_manifest, write_ids
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.injection.copying import RecoveryCopy, read_copy
from backlogctl.replay.injection.ledger import LEDGER_MADE, find_ledger
from backlogctl.replay.injection.plan import InjectionPlan
from backlogctl.spark_backfill.injection.id_lists import (
    PlacedChunk,
    place_chunks,
    read_staged_ids,
)
from backlogctl.spark_backfill.injection.ledger_topic import (
    CLOSED,
    CommittedChunk,
    find_foreign_chunks,
    read_visible,
    snapshot_ledger,
)
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.spark_backfill.request import ALLOW_IDS
from backlogctl.values import ChunkState, Gap, GapState, Recovery, RecoveryState

# It names a folder, and somebody else may have written the record.
_ID = re.compile(r"[A-Za-z0-9][\w.-]*")
ADOPTED = "adopted"


@dataclass(frozen=True, slots=True)
class Adoption:
    """What the Kafka ledger says of one recovery, and what of it can be taken over.

    Attributes:
        chunks: that are committed.
        known: as the SQL ledger has it; None where it does not.
        copy: as the staging directory has it, of one that the ledger lacks; None where there is
            none. `unknown` says why it cannot be recorded.
        manifest: None where it is gone, or not that of the plan that was carried out.
        ended: of one that waits for its approval, why it cannot go on; "" where it can.
        behind: committed chunks that the SQL ledger does not know to be.
        lacking: chunks whose id list is missing; staged: those whose messages are staged still.
        placed: where committed chunks are in the topic.
    """

    recovery_id: str
    cluster: str
    topic: str
    chunks: tuple[CommittedChunk, ...]
    known: Recovery | None
    copy: RecoveryCopy | None
    unknown: str
    manifest: Manifest | None
    ended: str
    behind: tuple[CommittedChunk, ...]
    lacking: tuple[CommittedChunk, ...]
    staged: frozenset[CommittedChunk] = frozenset()
    placed: Mapping[CommittedChunk, PlacedChunk] = field(default_factory=dict)

    @property
    def recovery(self) -> Recovery | None:
        """As one of both has it."""
        return self.known or (None if self.copy is None else self.copy.recovery)

    @property
    def rebuilt(self) -> tuple[CommittedChunk, ...]:
        """Chunks whose id list can be made again."""
        there = {*self.staged, *self.placed}
        return tuple(chunk for chunk in self.lacking if chunk in there)

    @property
    def missing(self) -> tuple[CommittedChunk, ...]:
        """Chunks whose id list cannot."""
        return tuple(chunk for chunk in self.lacking if chunk not in self.rebuilt)

    @property
    def is_needed(self) -> bool:
        """Whether something of it is not there."""
        return bool(self.lacking or self.behind or self.ended) or self.known is None


def find_adoptions(workspace: Workspace, wanted: Collection[str] = ()) -> tuple[Adoption, ...]:
    """What can be taken over, the oldest recovery first; only reads.

    Args:
        wanted: ids of recoveries; () for all.

    Raises:
        UsageError: a Kafka ledger knows none of an id.
        Refused: a Kafka ledger is none.
        ClusterUnreachable, KafkaFailure, LedgerError.
    """
    found: list[Adoption] = []
    names: set[str] = set()
    for cluster, section in workspace.config.clusters.items():
        properties = section.client_properties()
        try:
            ledger = snapshot_ledger(properties, workspace.config.kafka_ledger.topic, Deadline(30))
        except TopicMissing:
            continue
        records = read_visible(properties, ledger, range(ledger.partitions))
        ours = _choose(workspace, cluster, records, wanted)
        names.update(record.recovery for record in ours)
        looks = [_look(workspace, cluster, ledger, records, own) for own in _split(ours)]
        found += _place(properties, [look for look in looks if look.is_needed])
    if unknown := sorted(set(wanted) - names):
        raise UsageError(
            "no Kafka ledger says that it put anything back",
            subject=f"recovery {unknown[0]}",
            hint="`backlogctl ledger adopt` lists those that did",
        )
    return tuple(sorted(found, key=lambda one: (one.chunks[0].at, one.recovery_id)))


def _choose(
    workspace: Workspace,
    cluster: str,
    records: Sequence[CommittedChunk],
    wanted: Collection[str],
) -> list[CommittedChunk]:
    """Of the streams' topics, and of recoveries that are known here; a cluster may have others."""
    config = workspace.config
    topics = {one.topic for one in config.streams.values() if one.cluster == cluster}
    here = {one.id for one in workspace.ledger.recoveries.list() if one.cluster == cluster}
    return [
        record
        for record in records
        if _ID.fullmatch(record.recovery)
        and (not wanted or record.recovery in wanted)
        and (
            record.topic in topics
            or record.recovery in here
            or workspace.staging_of(record.recovery).is_dir()
        )
    ]


def _split(records: Sequence[CommittedChunk]) -> list[list[CommittedChunk]]:
    """By recovery, those that committed something."""
    found: dict[tuple[str, str], list[CommittedChunk]] = defaultdict(list)
    for record in records:
        found[record.recovery, record.topic].append(record)
    return [own for own in found.values() if any(record.chunk != CLOSED for record in own)]


def _look(
    workspace: Workspace,
    cluster: str,
    ledger: LedgerSnapshot,
    records: Sequence[CommittedChunk],
    own: Sequence[CommittedChunk],
) -> Adoption:
    recovery_id, topic = own[0].recovery, own[0].topic
    directory = workspace.staging_of(recovery_id)
    chunks = tuple(record for record in own if record.chunk != CLOSED)
    known = _find_known(workspace, recovery_id)
    copy, unknown = (None, "") if known else _find_copy(workspace, cluster, chunks)
    recovery = known or (None if copy is None else copy.recovery)
    manifest, ended = None, ""
    if recovery is not None and {chunk.plan_hash for chunk in chunks} != {recovery.plan_hash}:
        unknown = "its plan is not the one that was carried out"
    elif recovery is not None:
        manifest = _find_manifest(workspace, recovery)
        if recovery.state is RecoveryState.PLANNED:
            ended = _say_why_ended(workspace, recovery, manifest, ledger, records, own)
    noted = {
        (one.chunk.slot, one.chunk.number)
        for one in (workspace.ledger.chunks.list(recovery_id) if known else ())
        if one.state is ChunkState.INJECTED
    }
    behind = [one for one in chunks if (one.slot, one.chunk) not in noted]
    lacking = [one for one in chunks if not (directory / name_ids(one.slot, one.chunk)).is_file()]
    return Adoption(
        *(recovery_id, cluster, topic, chunks, known, copy, unknown, manifest, ended),
        behind=tuple(behind) if manifest is not None else (),
        lacking=tuple(lacking),
        staged=frozenset(one for one in lacking if read_staged_ids(directory, one) is not None),
    )


def _find_known(workspace: Workspace, recovery_id: str) -> Recovery | None:
    try:
        return workspace.ledger.recoveries.get(recovery_id)
    except UsageError:
        return None


def _find_copy(
    workspace: Workspace, cluster: str, chunks: Sequence[CommittedChunk]
) -> tuple[RecoveryCopy | None, str]:
    """The copy, if it is of the plan that was carried out; else why there is none."""
    try:
        copy = read_copy(workspace.staging_of(chunks[0].recovery))
        if copy is None:
            return None, "no copy of its plan is in the staging directory"
        workspace.plan_of(copy.recovery)
    except BacklogError as error:
        return None, str(error)
    if copy.recovery.cluster != cluster or copy.recovery.id != chunks[0].recovery:
        return None, "the copy of a plan in its place is another recovery's"
    return copy, ""


def _find_manifest(workspace: Workspace, recovery: Recovery) -> Manifest | None:
    sha256 = recovery.plan.get("manifest_sha256", "")
    try:
        return read_manifest(workspace.staging_of(recovery.id), sha256)
    except StagingError:
        return None


def _say_why_ended(
    workspace: Workspace,
    recovery: Recovery,
    manifest: Manifest | None,
    ledger: LedgerSnapshot,
    records: Sequence[CommittedChunk],
    own: Sequence[CommittedChunk],
) -> str:
    plan = workspace.plan_of(recovery)
    assert isinstance(plan, InjectionPlan)
    began = plan.ledger_topic or LedgerSnapshot(
        ledger.topic, ledger.topic_id, ledger.partitions, {}
    )
    if any(record.chunk == CLOSED for record in own):
        return "it was cancelled"
    if began.topic_id != ledger.topic_id:
        return "it was planned on another Kafka ledger"
    others = find_foreign_chunks(records, began, recovery=recovery.id, topic=plan.target_topic)
    if later := sorted({one.recovery for one in others}):
        return f"{', '.join(later)} put messages into the same topic since"
    directory = workspace.staging_of(recovery.id)
    if manifest is None or not all((directory / one.path).is_file() for one in manifest.chunks):
        return "its staged messages are gone"
    return ""


def _place(properties: Mapping[str, str], looks: Sequence[Adoption]) -> Iterator[Adoption]:
    """Looks in the topics for what is not known from elsewhere."""
    by_topic: dict[str, list[Adoption]] = defaultdict(list)
    for look in looks:
        by_topic[look.topic].append(look)
    for topic, own in by_topic.items():
        records = [chunk for look in own if look.behind or look.missing for chunk in look.chunks]
        try:
            placed = place_chunks(properties, topic, records) if records else {}
        except TopicMissing:
            placed = {}
        for look in own:
            there = {chunk: placed[chunk] for chunk in look.chunks if chunk in placed}
            yield replace(look, placed=there)


def adopt(workspace: Workspace, found: Adoption) -> None:
    """Writes down what can be shown of one recovery; again, it goes on where it was killed.

    Raises:
        InvalidTransition, LedgerError, StagingError.
    """
    directory = workspace.staging_of(found.recovery_id)
    for chunk in found.rebuilt:
        table = read_staged_ids(directory, chunk) if chunk in found.staged else None
        write_ids(
            *(directory, chunk.slot, chunk.chunk),
            table if table is not None else found.placed[chunk].ids,
        )
    if found.recovery is None or found.manifest is None:
        return
    ledger, actor = workspace.ledger, str(find_identity())
    if found.known is None:
        _record(workspace, found, actor)
    if find_ledger(workspace, found.recovery) is None:
        made = snapshot_ledger(
            workspace.config.clusters[found.cluster].client_properties(),
            workspace.config.kafka_ledger.topic,
            Deadline(30),
        )
        began = LedgerSnapshot(made.topic, made.topic_id, made.partitions, {})
        ledger.events.append(found.recovery_id, actor, LEDGER_MADE, began.to_json())
    ledger.chunks.add_all(found.recovery_id, found.manifest.chunks)
    for chunk in found.behind:
        there = found.placed.get(chunk)
        first, last = (None, None) if there is None else (there.first_offset, there.last_offset)
        ledger.chunks.mark_injected(
            *(found.recovery_id, chunk.slot, chunk.chunk, first, last),
            *(len(chunk.left_out), read_time(chunk.at)),
        )
    state = ledger.recoveries.get(found.recovery_id).state
    if found.ended and state is RecoveryState.PLANNED:
        detail = {"reason": found.ended, "by": ADOPTED}
        ledger.recoveries.advance(found.recovery_id, RecoveryState.REJECTED, actor, detail)


def _record(workspace: Workspace, found: Adoption, actor: str) -> None:
    assert found.copy is not None
    recovery = found.copy.recovery
    gaps = [] if found.ended else list(_take_gaps(workspace, found.copy.gaps))
    traits = workspace.kind_of(recovery).traits
    workspace.ledger.recoveries.create(
        *(recovery.kind, recovery.stream, recovery.cluster, recovery.topic, recovery.group),
        *(recovery.plan, recovery.plan_hash, gaps, actor, recovery.id),
        stops_consumers=traits.stops_consumers,
        holds_when_failed=traits.holds_when_failed,
        planned_at=recovery.created_at,
    )


def _take_gaps(workspace: Workspace, planned: Sequence[Gap]) -> Iterator[str]:
    """Those that it closes: the ledger has them as they were planned, or does not know them yet."""
    for gap in planned:
        now = workspace.ledger.gaps.record(gap)
        place = (now.start, now.end, now.sequences)
        if now.state is GapState.OPEN and place == (gap.start, gap.end, gap.sequences):
            yield now.id


def say_adoption(found: Adoption) -> tuple[str, ...]:
    """What is known of it, one sentence each."""
    count = sum(chunk.sent for chunk in found.chunks)
    told = [
        f"{format_plural(count, 'message')} of {format_plural(len(found.chunks), 'chunk')} "
        f"are committed to topic {found.topic}"
    ]
    if found.recovery is None or found.manifest is None:
        why = found.unknown or "its manifest is gone"
        told.append(
            f"it cannot be recorded again, {why}: later plans leave out what its id lists name"
        )
    elif found.ended:
        told.append(f"it cannot go on: {found.ended}; later plans leave out what it put back")
    elif found.known is None:
        total = len(found.manifest.chunks)
        told.append(
            f"{len(found.chunks)} of its {format_plural(total, 'chunk')} are committed, and "
            "whether they were read back is not known: approve it and run it to find out"
        )
    if found.behind and found.known is not None:
        told.append(f"the ledger lacks {format_plural(len(found.behind), 'committed chunk')}")
    if found.rebuilt:
        told.append(f"{format_plural(len(found.rebuilt), 'id list')} can be made again")
    if found.missing:
        lost = sum(chunk.sent for chunk in found.missing)
        told.append(
            f"{format_plural(len(found.missing), 'id list')} cannot: "
            f"{format_plural(lost, 'message')} of them may be sent a second time, where they are "
            f"in the topic no more; `--allow {ALLOW_IDS}` lets a plan go on without them"
        )
    return tuple(told)


def list_next(found: Adoption) -> list[str]:
    """What to do once it is adopted."""
    commands = []
    if found.known is None and found.manifest is not None and not found.ended:
        name = found.recovery_id
        commands += [f"backlogctl approve {name} --by NAME", f"backlogctl run {name}"]
    # A redrive is planned with its source and its bounds, as it was before.
    if found.missing and found.recovery is not None and found.recovery.kind == "rebuild":
        commands.append(f"backlogctl plan rebuild {found.recovery.stream} --allow {ALLOW_IDS}")
    return commands
