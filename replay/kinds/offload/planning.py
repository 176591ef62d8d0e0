"""Makes the plan of an offload; Kafka is only read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.fanout.disk import PartitionBacklog, measure_share
from backlogctl.fanout.launchers import Role, make_launcher
from backlogctl.formats import format_bytes, format_duration, format_plural
from backlogctl.monitoring.watch.disks import Forecast
from backlogctl.replay.consumers.fleet import (
    fingerprint_with_consumers,
    fleet_of,
    freeze_consumers,
    keep_waits,
    require_consumers,
)
from backlogctl.replay.engine.guards import store_plan, warn_about_approval
from backlogctl.replay.engine.kind import Say, Workspace, ignore_progress
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.kinds.offload.backlog import (
    OffloadBacklog,
    OffloadRange,
    describe_place_problem,
    find_cut_groups,
    inspect_backlog,
    look_at_place,
    name_place,
    refuse_cutting,
    warn_about_shares,
)
from backlogctl.replay.kinds.offload.plan import (
    ALLOW_DISK,
    ALLOW_LOSE,
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
from backlogctl.replay.observe.snapshot import Draft, begin_plan, finish_plan, take_snapshot
from backlogctl.values import Recovery
from backlogctl_delivery.visible import quote_word

# What an offload will do to Kafka and to consumers, in sentences that an approver reads.


def describe_stopped(stream: Stream, launching: str, members: Sequence[str]) -> list[str]:
    """Who stops reading, and how."""
    told = [f"the consumers of group {stream.group}: {launching}"]
    if members:
        told.append(f"{format_plural(len(members), 'member')} of it now")
    else:
        told.append("the group has no members now")
    return told


def describe_moved(
    stream: Stream, unread: int, size: int | None, place: PlannedPlace | None
) -> list[str]:
    """Where the messages go, and how the group's offsets are set."""
    many = f"at most {format_plural(unread, 'message')}"
    if size is not None:
        many += f", about {format_bytes(size)}"
    where = f"into the archive {place.location}" if place else "nowhere: they are not archived"
    return [
        f"{many}, and what is written until the consumers are stopped: {where}",
        f"the committed offsets of group {stream.group}, to the last stable offsets of that time",
    ]


def describe_freed(
    stream: Stream, freeing: PlannedFreeing, cut: Sequence[CutGroup], *, archived: bool
) -> list[str]:
    """What is deleted from the brokers, and who loses by it."""
    after = "once it is archived and read back" if archived else "for good"
    told = [
        f"all of topic {stream.topic} up to these offsets is deleted, {after}",
        freeing.told,
    ]
    told += [
        f"group {item.group} loses at most {format_plural(item.messages, 'message')}"
        for item in cut
    ]
    return told


def describe_given_back(
    stream: Stream, place: PlannedPlace | None, *, has_source: bool
) -> list[str]:
    """What comes back, and how."""
    assert stream.consumers is not None
    replicas = format_plural(stream.consumers.replicas, "consumer")
    told = [f"{replicas} of group {stream.group}, which go on with what is written from then on"]
    if place is not None:
        told.append(
            "what was archived waits as a gap: the nightly backfill, or `backlogctl plan redrive "
            f"{stream.name} --from archive:...`, puts it back as it was"
        )
    elif has_source:
        told.append(
            "what was discarded is a gap: the nightly backfill, or `backlogctl plan rebuild "
            f"{stream.name}`, rebuilds it from the tables"
        )
    else:
        told.append("what was discarded never comes back: the stream has no source")
    return told


# What of a stream's configuration an offload goes by.
FINGERPRINT = ("cluster", "topic", "group", "isolation")
_SEGMENT = "segment.bytes"
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
        workspace, stream, lambda _: select_rights("see offload", stream), origin=origin, say=say
    )
    refuse_losing(stream, discard=options.discard, allowed=options.allow)
    plan = compute_offload(draft, inspect_backlog(draft, take_snapshot(draft)), options)
    refuse_unfit(plan)
    return finish_plan(workspace, store_plan(workspace, draft.recovery_id, plan))


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
    if (
        plan.place
        and (why := describe_place_problem(plan.place))
        and ALLOW_DISK not in plan.allowed
    ):
        raise Refused(
            f"the archive should not go there: {why}",
            subject=f"archive {plan.place.location}",
            hint="name another place (`staging.archive`), such as another disk or "
            f"`s3a://bucket/backlog`; {again} --allow {ALLOW_DISK}`",
        )
    refuse_cutting(
        plan.cut_groups,
        plan.allowed_groups,
        "" if ALLOW_UNKNOWN in plan.allowed else plan.others_unknown,
        topic=plan.topic,
        hint=f"{again} {{words}}` cuts them",
    )


def fingerprint_offload(config: Config, stream: Stream) -> dict[str, Any]:
    """What of a stream's configuration an offload goes by; names of variables, no values."""
    return fingerprint_with_consumers(config, stream, FINGERPRINT)


def fingerprint_for(planned: Mapping[str, Any], config: Config, stream: Stream) -> dict[str, Any]:
    """The same now, to hold against a plan's."""
    return keep_waits(planned, fingerprint_offload(config, stream))


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
    launching = config.mask_secrets(launcher.describe(fleet_of(workspace, stream, Role.ORIGINAL)))
    has_source = stream.source is not None
    warnings = (
        *snapshot.warnings,
        *warn_about_shares(snapshot.readers),
        *_list_warnings(workspace, stream, backlog, place),
    )
    return OffloadPlan(
        **draft.fill(snapshot, options, fingerprint_offload(config, stream), warnings),
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
    """What the brokers get back: whole segments below the last stable offsets."""
    replication = backlog.snapshot.topic.replication
    segment = int(backlog.snapshot.topic.config.get(_SEGMENT, 0)) or None
    most = kept = 0.0
    for part in backlog.partitions:
        cut = PartitionBacklog(
            part.sample.partition,
            part.end - part.sample.low,
            part.sample.low,
            part.sample.high,
        )
        share = measure_share(backlog.log_dirs, cut)
        if share is None:
            why = backlog.log_dirs.reason or "no broker reports the topic's size"
            return PlannedFreeing(
                most=None, kept=None, told=f"how much that frees is unknown: {why}"
            )
        most += share
        kept += share if segment is None else min(share, segment)
    found = PlannedFreeing(most=round(most * replication), kept=round(kept * replication), told="")
    last = "" if segment is None else f" (up to {format_bytes(segment)})"
    return found.model_copy(
        update={
            "told": f"that frees about {format_bytes(found.most)} on all brokers together, at most "
            f"{format_bytes(found.kept)} less: the last segment of each partition{last} stays "
            "until it is full"
        }
    )


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


def format_forecast(forecast: Forecast) -> str:
    """`broker 1 is full in 12 min at the present rate`."""
    if forecast.seconds is not None:
        told = f"broker {forecast.broker} is full in {format_duration(forecast.seconds)} at the "
        return told + "present rate" + (f"; {forecast.why}" if forecast.why else "")
    if forecast.is_known:
        return forecast.why
    return f"when they are full is unknown: {forecast.why}"


def _list_warnings(
    workspace: Workspace, stream: Stream, backlog: OffloadBacklog, place: PlannedPlace | None
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
    if place is not None and (why := describe_place_problem(place)):
        warnings.append(f"the archive's place: {why}")
    if place is None:
        warnings.append("nothing is archived: it is deleted for good")
    if unknown := backlog.snapshot.readers.say_unknown(stream.group):
        warnings.append(f"other groups are unknown: the tool {unknown}")
    return warnings
