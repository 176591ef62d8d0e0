"""Makes the plan of an offload: what is unread, where it goes, who loses; Kafka is only read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.fanout.disk import SAFETY, PartitionBacklog, find_local_part, measure_share
from backlogctl.fanout.launchers import Role, make_launcher
from backlogctl.fanout.segments import RollOutlook, foresee_roll
from backlogctl.formats import format_bytes, format_plural
from backlogctl.kafka.admin import TopicInfo, describe_group_state, list_offsets
from backlogctl.kafka.groups import GroupState
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs, read_log_dirs
from backlogctl.kafka.readers import TopicReaders
from backlogctl.kafka.rights import Right
from backlogctl.monitoring.watch.disks import WINDOW, Forecast, forecast_full, make_readings
from backlogctl.replay.consumers.fleet import (
    fingerprint_with_consumers,
    fleet_of,
    freeze_consumers,
    require_consumers,
)
from backlogctl.replay.engine.guards import (
    refuse_beyond_end,
    refuse_missing_group,
    store_plan,
    warn_about_approval,
)
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.kinds.offload.describe import (
    describe_freed,
    describe_freeing,
    describe_given_back,
    describe_moved,
    describe_stopped,
    format_forecast,
    list_numbers,
)
from backlogctl.replay.kinds.offload.plan import (
    ALLOW_DISK,
    ALLOW_LOSE,
    ALLOW_NOTHING,
    ALLOW_OTHERS,
    ALLOW_UNKNOWN,
    NAME,
    CutGroup,
    OffloadOptions,
    OffloadPlan,
    PlannedBroker,
    PlannedDisks,
    PlannedFreeing,
    PlannedPartition,
    PlannedPlace,
)
from backlogctl.replay.observe.rights import select_rights
from backlogctl.replay.observe.snapshot import (
    Draft,
    StreamSnapshot,
    begin_plan,
    finish_plan,
    take_snapshot,
)
from backlogctl.replay.observe.stream import list_other_topics
from backlogctl.values import PartitionSample, Recovery, Sample
from backlogctl_delivery.visible import quote_word

_ARCHIVES = "archives"
# Each of a broker's log directories has this file.
_BROKERS_FILE = "meta.properties"
_SAME_DISK = 1 << 20


def name_place(config: Config, recovery_id: str) -> str:
    """The archive's folder or URL, each recovery's own."""
    base = config.staging.archive or str(config.staging.dir / _ARCHIVES)
    return f"{base.rstrip('/')}/{recovery_id}"


def find_path(location: str) -> Path | None:
    """The folder of a location on this machine's file systems; None in an object store."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    return Path(parts.path if parts.scheme else location).absolute()


def look_at_place(location: str, unread_bytes: int | None, log_dirs: LogDirs) -> PlannedPlace:
    """What is known of it now; changes nothing."""
    needed = None if unread_bytes is None else round(unread_bytes * SAFETY)
    path = find_path(location)
    if path is None:
        return PlannedPlace(
            location=location,
            needed=needed,
            free=None,
            enough=True,
            on_broker=False,
            told="an object store: its room is not measured",
        )
    there = _find_existing(path)
    free = shutil.disk_usage(there).free
    broker, unseen = _find_broker(there, log_dirs)
    told = f"{format_bytes(free)} are free, "
    if needed is None:
        told += f"and what is needed is not known: {log_dirs.reason or 'sizes are not told'}"
    else:
        told += f"and at most about {format_bytes(needed)} are needed"
    if broker is not None:
        told += f"; it is on the disk of broker {broker}: it would fill what it is to free"
    elif unseen:
        told += f"; whether it is on a broker's own disk is not known: {unseen}"
    return PlannedPlace(
        location=location,
        needed=needed,
        free=free,
        enough=None if needed is None else needed <= free,
        on_broker=True if broker is not None else (None if unseen else False),
        told=told,
    )


def _find_existing(path: Path) -> Path:
    """The folder itself, or the nearest one above that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _is_another(directory: str, broker: BrokerLogDirs) -> bool:
    """Whether the folder that we see is on another disk than the one that the broker sees there: it
    runs in a container, or mounts its own."""
    if broker.total_bytes is None or len(broker.directories) > 1:
        return False
    return abs(shutil.disk_usage(directory).total - broker.total_bytes) > _SAME_DISK


def _find_broker(there: Path, log_dirs: LogDirs) -> tuple[int | None, str]:
    """The broker whose disk it is; else why that is not known, "" where it is none's."""
    if log_dirs.brokers is None:
        return None, log_dirs.reason
    seen = False
    for broker in log_dirs.brokers:
        for directory in broker.directories:
            try:
                if not (Path(directory) / _BROKERS_FILE).is_file():
                    continue
                if _is_another(directory, broker):
                    continue
                seen = True
                if Path(directory).stat().st_dev == there.stat().st_dev:
                    return broker.broker, ""
            except OSError:
                continue
    return None, log_dirs.reason if seen else "the brokers' folders are not on this machine"


# Which other groups a deletion would cut: DeleteRecords deletes for every group.


def find_cut_groups(
    readers: TopicReaders, group: str, lows: Mapping[int, int], fence: Mapping[int, int]
) -> tuple[CutGroup, ...]:
    """The other groups that have not read all below the fence, and what each would lose.

    Where a group has no commit it may read from the log's start: `auto.offset.reset` is its own.
    Of a share group at most what it has not acknowledged: its start may lag behind that.
    """
    found = []
    for name, commits in readers.known.items():
        stands = {n: max(commits.get(n, 0), lows.get(n, 0)) for n in fence}
        below = {n: fence[n] - at for n, at in stands.items() if at < fence[n]}
        most = readers.unacknowledged.get(name, {})
        lost = {n: left for n, many in below.items() if (left := min(many, most.get(n, many)))}
        if name != group and lost:
            found.append(CutGroup(group=name, messages=sum(lost.values()), partitions=lost))
    return tuple(found)


def warn_about_shares(readers: TopicReaders) -> list[str]:
    """Where share groups cannot be asked for, what they lose is not known, and not nothing."""
    if not readers.shares_unknown:
        return []
    return [f"whether share groups lose unread messages is unknown: {readers.shares_unknown}"]


def refuse_cutting(
    cut: Sequence[CutGroup], allowed: frozenset[str], unknown: str, *, topic: str, hint: str
) -> None:
    """Each group that would lose something is allowed by its own name.

    Args:
        unknown: why there may be more groups; "" where those are all, or that is allowed.

    Raises:
        Refused: names the groups, and what they lose.
    """
    missing = [item for item in cut if item.group not in allowed]
    if missing:
        told = ", ".join(
            f"{item.group} (at most {format_plural(item.messages, 'message')})" for item in missing
        )
        words = " ".join(f"--allow {quote_word(f'{ALLOW_OTHERS}:{m.group}')}" for m in missing)
        raise Refused(
            f"other groups have not read what would be deleted: {told}",
            subject=f"topic {topic}",
            hint=f"let them read on first; {hint.format(words=words)}",
        )
    if unknown:
        words = f"--allow {ALLOW_UNKNOWN}"
        raise Refused(
            f"whether other groups have read what would be deleted is unknown: the tool {unknown}",
            subject=f"topic {topic}",
            hint=f"grant that; {hint.format(words=words)}",
        )


# What an offload's plan is computed from: what is unread, the brokers' disks, who else reads.

# Between two readings of the disks: enough to see one fill that is filling fast.
READINGS_APART = 3.0
_DISK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OffloadRange:
    """Offsets `[start, end)` of a partition that the group has not read; `end` is the LSO."""

    sample: PartitionSample
    committed: int
    start: int
    end: int
    bytes: int | None

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class OffloadBacklog:
    """What is unread, the brokers' disks, and who reads, as they are now."""

    snapshot: StreamSnapshot
    group: GroupState
    other_topics: tuple[str, ...]  # that the group reads too
    partitions: tuple[OffloadRange, ...]
    log_dirs: LogDirs
    forecast: Forecast
    outlook: RollOutlook
    hidden: frozenset[int]  # partitions with a transaction that was open all the time

    @property
    def unread(self) -> int:
        """Unread offsets, all partitions together."""
        return sum(part.count for part in self.partitions)

    @property
    def bytes(self) -> int | None:
        """Those of one replica of what is unread; None where that of a partition is unknown."""
        known = [part.bytes for part in self.partitions]
        return None if None in known else sum(size for size in known if size is not None)

    @property
    def fence(self) -> Mapping[int, int]:
        return {part.sample.partition: part.end for part in self.partitions}


def inspect_backlog(draft: Draft, snapshot: StreamSnapshot) -> OffloadBacklog:
    """What is unread, and the brokers' disks; keeps readings of these.

    Raises:
        Refused: the topic cannot be cut, the group's commits do not fit, or nothing is unread.
    """
    stream, sample, limit = draft.stream, snapshot.sample, Deadline(60.0)
    refuse_undeletable(snapshot.topic)
    refuse_missing_group(stream, sample, snapshot.gaps)
    refuse_beyond_end(sample)
    _refuse_uncommitted(sample)
    group = describe_group_state(draft.properties, stream.group, limit)
    others = list_other_topics(draft.properties, stream, limit)
    draft.say("reading the brokers' disks")
    log_dirs, forecast = look_at_disks(draft.workspace, stream)
    log_dirs = find_local_part(log_dirs, draft.properties, snapshot.topic, limit)
    partitions = tuple(_place(part, log_dirs) for part in sample.partitions)
    if not any(part.count for part in partitions):
        raise Refused(
            "nothing is unread, so there is nothing to offload",
            subject=f"stream {stream.name}",
            hint=f"see `backlogctl status {stream.name}`",
        )
    outlook = foresee_roll(draft.properties, draft.properties, snapshot.topic)
    hidden = _find_hidden(draft, sample)
    return OffloadBacklog(snapshot, group, others, partitions, log_dirs, forecast, outlook, hidden)


def _find_hidden(draft: Draft, sample: Sample) -> frozenset[int]:
    """Where readers are not past what was written when the sample was taken: of producers with
    short transactions they are."""
    then = {part.partition: part.high for part in sample.partitions if part.lso < part.high}
    now = list_offsets(draft.properties, sample.topic, then, "latest", "read_committed")
    return frozenset(number for number, at in now.items() if at < then[number])


def look_at_disks(
    workspace: Workspace, stream: Stream, *, apart: float | None = None
) -> tuple[LogDirs, Forecast]:
    """The disks now, and when they are full; two readings, and those of the last minutes.

    Args:
        apart: seconds between the two; 0 for only one.
    """
    wait = READINGS_APART if apart is None else apart
    log_dirs = read_disks(workspace, stream)
    if log_dirs.brokers is None:
        return log_dirs, Forecast(None, None, log_dirs.reason, is_known=False)
    if wait:
        time.sleep(wait)
        log_dirs = read_disks(workspace, stream)
    now = utc_now()
    history = workspace.ledger.disks.history(stream.cluster, now - WINDOW)
    return log_dirs, forecast_full(history, now, log_dirs.reason)


def read_disks(workspace: Workspace, stream: Stream) -> LogDirs:
    """The disks now; what was read is kept."""
    found = read_log_dirs(workspace.properties(stream), stream.topic, Deadline(_DISK_SECONDS))
    workspace.ledger.disks.add(make_readings(stream.cluster, found, stream.topic))
    return found


def refuse_undeletable(topic: TopicInfo) -> None:
    """Refuses a topic whose records are never deleted: brokers answer PolicyViolation."""
    policy = topic.config.get("cleanup.policy", "delete")
    if "delete" not in policy:
        raise Refused(
            f"its records cannot be deleted: its cleanup.policy is {policy}, without `delete`",
            subject=f"topic {topic.name}",
            hint="compaction keeps the newest message of each key; an offload is for topics that "
            "expire",
        )


def _refuse_uncommitted(sample: Sample) -> None:
    """Refuses partitions without a commit: where the group is in them is unknown (fault 21)."""
    missing = [part.partition for part in sample.partitions if part.committed is None]
    if missing:
        places = ",".join(map(str, missing))
        raise Refused(
            "it has no committed offset on partitions "
            f"{', '.join(map(str, missing))}: what it has not read there is unknown",
            subject=f"group {sample.group} on topic {sample.topic}",
            hint="set one while its consumers are stopped, such as `kafka-consumer-groups.sh "
            f"--bootstrap-server HOST:PORT --group {quote_word(sample.group)} --topic "
            f"{sample.topic}:{places} --reset-offsets --to-earliest --execute`, and plan again",
        )


def _place(part: PartitionSample, log_dirs: LogDirs) -> OffloadRange:
    assert part.committed is not None
    start = max(part.committed, part.low)
    count = max(0, part.lso - start)
    share = measure_share(log_dirs, PartitionBacklog(part.partition, count, part.low, part.high))
    size = None if share is None else round(share)
    return OffloadRange(part, part.committed, start, part.lso, size)


# What of a stream's configuration an offload goes by.
FINGERPRINT = ("cluster", "topic", "group", "isolation")
_SHOWN = 3


def plan_offload(
    workspace: Workspace,
    stream: Stream,
    options: OffloadOptions,
    *,
    origin: RunOrigin | None = None,
    say: Say = ignore_progress,
) -> Recovery:
    """Plans an offload: a value, stored and hashed before anything is changed.

    Raises:
        UsageError: the stream has no consumers section.
        Refused: nothing is unread, a guard says no, or another recovery is in the way.
    """
    require_consumers(stream)
    draft = begin_plan(
        workspace,
        stream,
        lambda _: list_offload_rights(workspace.config, stream),
        origin=origin,
        say=say,
        writes=False,
    )
    refuse_losing(stream, discard=options.discard, allowed=options.allow)
    plan = compute_offload(draft, inspect_backlog(draft, take_snapshot(draft)), options)
    refuse_unfit(plan)
    return finish_plan(workspace, store_plan(workspace, draft.recovery_id, plan))


def list_offload_rights(config: Config, stream: Stream) -> tuple[Right, ...]:
    """Records are deleted, segments ended, and offsets of the group are committed."""
    prefix = config.kafka_ledger.transactional_prefix
    return select_rights("see offload", stream, prefix=prefix)


def refuse_losing(stream: Stream, *, discard: bool, allowed: Collection[str]) -> None:
    """What has no archive can be rebuilt, or may be lost by name.

    Raises:
        Refused: says which word allows it.
    """
    if discard and stream.source is None and ALLOW_LOSE not in allowed:
        raise Refused(
            "it has no source to rebuild from: what is discarded never comes back",
            subject=f"stream {stream.name}",
            hint=f"`backlogctl plan offload {stream.name}` archives it; `--discard --allow "
            f"{ALLOW_LOSE}` loses it for good",
        )


def refuse_unfit(plan: OffloadPlan) -> None:
    """Refuses what was not allowed by name, of the archive's place and of other groups.

    Raises:
        Refused: says which word allows it.
    """
    said = ["--discard"] if plan.options.discard else []
    said += [f"--allow {quote_word(word)}" for word in plan.allowed]
    again = " ".join((f"or `backlogctl plan offload {plan.stream}", *said))
    if plan.place and (why := plan.place.problem) and ALLOW_DISK not in plan.allowed:
        raise Refused(
            f"the archive should not go there: {why}",
            subject=f"archive {plan.place.location}",
            hint="name another place (`staging.archive`), such as another disk or "
            f"`s3a://bucket/backlog`; {again} --allow {ALLOW_DISK}`",
        )
    refuse_freeing_nothing(
        plan.freeing, plan.allowed, plan.topic, f"{again} --allow {ALLOW_NOTHING}` goes on with it"
    )
    refuse_cutting(
        plan.cut_groups,
        plan.allowed_groups,
        "" if ALLOW_UNKNOWN in plan.allowed else plan.others_unknown,
        topic=plan.topic,
        hint=f"{again} {{words}}` cuts them",
    )


def refuse_freeing_nothing(
    freeing: PlannedFreeing, allowed: Collection[str], topic: str, hint: str
) -> None:
    """An offload is for the disks: where perhaps nothing is freed, that is allowed by name.

    Raises:
        Refused: says why.
    """
    if freeing.problem and ALLOW_NOTHING not in allowed:
        raise Refused(
            f"perhaps no disk space is freed: {freeing.problem}",
            subject=f"topic {topic}",
            hint=f"mend that first; {hint}",
        )


def compute_offload(draft: Draft, backlog: OffloadBacklog, options: OffloadOptions) -> OffloadPlan:
    """The plan, from what was seen."""
    workspace, stream, config = draft.workspace, draft.stream, draft.workspace.config
    assert stream.consumers is not None
    place = None
    if not options.discard:
        location = name_place(config, draft.recovery_id)
        place = look_at_place(location, backlog.bytes, backlog.log_dirs)
    freeing = estimate_freeing(backlog)
    snapshot = backlog.snapshot
    cut = find_cut_groups(snapshot.readers, stream.group, snapshot.lows, backlog.fence)
    members = tuple(str(member) for member in backlog.group.members)
    launcher = make_launcher(stream.consumers, draft.properties, lambda _: None)
    fleet = fleet_of(workspace, stream, Role.ORIGINAL)
    launching = config.mask_secrets(launcher.describe(fleet))
    has_source = stream.source is not None
    warnings = (
        *snapshot.warnings,
        *map(config.mask_secrets, launcher.check(fleet, None, 0)),
        *warn_about_shares(snapshot.readers),
        *_list_warnings(workspace, stream, backlog, place, freeing),
    )
    configuration = fingerprint_with_consumers(config, stream, FINGERPRINT)
    return OffloadPlan(
        **draft.fill(snapshot, options, configuration, warnings),
        partitions=tuple(_freeze(part) for part in backlog.partitions),
        unread=backlog.unread,
        bytes=backlog.bytes,
        has_source=has_source,
        place=place,
        disks=_freeze_disks(backlog),
        freeing=freeing,
        cut_groups=cut,
        replicas=stream.consumers.replicas,
        members=members,
        stopped=tuple(describe_stopped(stream, launching, members)),
        moved=tuple(describe_moved(stream, backlog.unread, backlog.bytes, place)),
        freed=tuple(describe_freed(stream, freeing, cut, archived=place is not None)),
        given_back=tuple(describe_given_back(stream, place, has_source=has_source)),
        other_topics=backlog.other_topics,
        launch=freeze_consumers(config, stream),
    )


def estimate_freeing(backlog: OffloadBacklog) -> PlannedFreeing:
    """What the brokers get back."""
    outlook, hidden = backlog.outlook, backlog.hidden
    ended = outlook.list_sure(part.sample.partition for part in backlog.partitions) - hidden
    cuts = [
        # What is stable by then, where a segment ends; else up to the last stable offset of now.
        PartitionBacklog(
            at.partition, (at.high if at.partition in ended else at.lso) - at.low, at.low, at.high
        )
        for at in (part.sample for part in backlog.partitions)
    ]
    why = [outlook.problem] if outlook.problem else []
    if hidden:
        why.append(f"open transactions hide the end of partitions {list_numbers(hidden)}")
    if outlook.dated_ahead:
        numbers = list_numbers(outlook.dated_ahead)
        why.append(f"partitions {numbers} have messages that are dated in the future")
    return describe_freeing(backlog.log_dirs, backlog.snapshot.topic, cuts, ended, "; ".join(why))


def _freeze(part: OffloadRange) -> PlannedPartition:
    return PlannedPartition(
        partition=part.sample.partition,
        log_start=part.sample.low,
        committed=part.committed,
        end=part.end,
        high=part.sample.high,
        unread=part.count,
        bytes=part.bytes,
    )


def _freeze_disks(backlog: OffloadBacklog) -> PlannedDisks:
    forecast = backlog.forecast
    return PlannedDisks(
        brokers=tuple(
            PlannedBroker(broker=b.broker, usable=b.usable_bytes, total=b.total_bytes)
            for b in backlog.log_dirs.brokers or ()
        ),
        seconds_to_full=None if forecast.seconds is None else round(forecast.seconds, 1),
        told=format_forecast(forecast),
    )


def _list_warnings(
    workspace: Workspace,
    stream: Stream,
    backlog: OffloadBacklog,
    place: PlannedPlace | None,
    freeing: PlannedFreeing,
) -> list[str]:
    warnings = warn_about_approval(workspace, stream, NAME)
    if lost := backlog.snapshot.status["lost"]:
        warnings.append(
            f"at most {format_plural(lost, 'message')} of this group expired unread before: "
            f"`backlogctl plan rebuild {stream.name}` puts them back"
        )
    if backlog.other_topics:
        shown = ", ".join(backlog.other_topics[:_SHOWN])
        more = ", ..." if len(backlog.other_topics) > _SHOWN else ""
        warnings.append(
            f"the group reads other topics too ({shown}{more}): nobody reads them until its "
            "consumers are back"
        )
    held = [p.sample.partition for p in backlog.partitions if p.sample.lso < p.sample.high]
    if held:
        warnings.append(
            f"open transactions hide the end of partitions {', '.join(map(str, held))}: what is "
            "behind their first message is neither archived nor deleted"
        )
    if "compact" in backlog.snapshot.topic.config.get("cleanup.policy", ""):
        warnings.append("the topic is compacted: holes between its offsets are no losses")
    if place is not None and (why := place.problem):
        warnings.append(f"the archive's place: {why}")
    if freeing.kept or freeing.problem:
        warnings.append(f"not all of the space may be freed: {freeing.told}")
    if place is None:
        warnings.append("nothing is archived: it is deleted for good")
    if unknown := backlog.snapshot.readers.say_unknown(stream.group):
        warnings.append(f"other groups are unknown: the tool {unknown}")
    return warnings
