"""Makes the plan of an emergency expansion; Kafka is only read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from backlog.clock import format_time, utc_now
from backlog.config import Config, Stream
from backlog.errors import Refused, UsageError
from backlog.manifest import hash_value
from backlog.values import Recovery
from fanout.deadlines import HOLD_SECONDS, HOLD_TIMES, needs_hold
from fanout.disk import (
    DiskCheck,
    PartitionBacklog,
    combine_checks,
    estimate_copy,
    estimate_hold,
    measure_growth,
)
from fanout.launchers import Role, make_launcher
from fanout.layout import MAX_FACTOR, Layout, Load, plan_layout
from fanout.retention import FOREVER, compute_expansion_hold
from fanout.temporary import name_temporary_topic
from replay.approval import approve_automatically
from replay.expand_ground import Behind, Ground, find_rate, observe
from replay.expand_sentences import Facts, tell_created, tell_given_back, tell_raised, tell_stopped
from replay.expand_warnings import (
    warn_about_backlog,
    warn_about_disk,
    warn_about_keys,
    warn_about_speed,
    warn_about_stream,
)
from replay.fleets import fleet_of
from replay.housekeeping import clear_staging
from replay.identity import find_identity
from replay.kinds import ALLOW_DISK, EXPAND
from replay.plans import check_denied, refuse_active
from replay.workspace import Workspace

ALLOWED = (ALLOW_DISK,)
ORDERS = ("key", "round_robin")
STARTS = ("earliest", "latest")
# What of a stream's configuration an expansion goes by.
_MATTERS = ("cluster", "topic", "group", "isolation", "partitioner", "expand")
# What an hour adds is looked at where nobody knows how long the drain takes.
_LONG_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ExpandOptions:
    """What the operator said; None takes the configuration's.

    `rate` is in messages a second, of one consumer. `start` is where partitions without a commit
    begin. `origin` is the scheduler's run that asked for the plan; None from the shell.
    """

    rate: float | None = None
    factor: int | None = None
    order: str | None = None
    start: str = "earliest"
    allow: frozenset[str] = frozenset()
    origin: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raises UsageError for what cannot be."""
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise UsageError("it must be above zero", subject="--rate")
        if self.factor is not None and not 1 <= self.factor <= MAX_FACTOR:
            raise UsageError(f"it must be from 1 to {MAX_FACTOR}", subject="--factor")
        _check_word(self.order or ORDERS[0], ORDERS, "--order")
        _check_word(self.start, STARTS, "--start")
        for word in self.allow:
            _check_word(word, ALLOWED, "--allow")


def plan_expand(
    workspace: Workspace,
    stream: Stream,
    options: ExpandOptions,
    tell: Callable[[str], None] = lambda _: None,
) -> Recovery:
    """Plans an expansion: a value, stored and hashed before anything is changed.

    Args:
        tell: is told what is being done, for people.

    Raises:
        UsageError: the stream has no consumers, or their speed is not known.
        Refused: nothing is behind, a guard says no, or another recovery is in the way.
    """
    options.check()
    if stream.consumers is None:
        raise UsageError(
            "it does not say how its consumers are started and stopped",
            subject=f"stream {stream.name}",
            hint=f"add `streams.{stream.name}.consumers` with `launcher: process`, `command` or "
            "`manual` (people do it when asked); see docs/configuration.md",
        )
    check_denied(workspace, stream)
    refuse_active(workspace, stream)
    ground = observe(workspace, stream, options.start, tell)
    recovery_id = workspace.ledger.recoveries.next_id(utc_now())
    plan = compute_plan(workspace, stream, options, ground, recovery_id)
    _refuse_full(stream, plan)
    recovery = workspace.ledger.recoveries.create(
        EXPAND,
        stream.name,
        stream.cluster,
        stream.topic,
        stream.group,
        plan,
        hash_value(plan),
        (),
        actor=str(find_identity()),
        id=recovery_id,
    )
    clear_staging(workspace)
    return approve_automatically(workspace.ledger, workspace.config, recovery)


def name_recovery_group(group: str, recovery_id: str) -> str:
    """The group that reads the temporary topic."""
    return f"{group}.recovery.{recovery_id}"


def fingerprint_expansion(config: Config, stream: Stream) -> dict[str, Any]:
    """What of a stream's configuration an expansion goes by; names of variables, no values."""
    full = stream.fingerprint()
    consumers = None if stream.consumers is None else freeze_consumers(config, stream)
    return {**{name: full[name] for name in _MATTERS}, "consumers": consumers}


def freeze_consumers(config: Config, stream: Stream) -> dict[str, Any]:
    """How the consumers are started and stopped, without the values of their variables."""
    assert stream.consumers is not None
    frozen = stream.consumers.model_dump(mode="json")
    frozen["environment"] = sorted(stream.consumers.environment)
    masked: dict[str, Any] = _mask(config, frozen)
    return masked


def _mask(config: Config, value: Any) -> Any:
    """A command may hold a password that came by reference."""
    if isinstance(value, str):
        return config.mask_secrets(value)
    if isinstance(value, Mapping):
        return {name: _mask(config, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(config, item) for item in value]
    return value


def compute_plan(
    workspace: Workspace,
    stream: Stream,
    options: ExpandOptions,
    ground: Ground,
    recovery_id: str,
) -> dict[str, Any]:
    """The plan, from what was seen: the same ground makes the same numbers."""
    assert stream.consumers is not None
    config = workspace.config
    factor = options.factor or stream.expand.factor
    order = options.order or stream.expand.order
    rate, rate_source = find_rate(ground, stream, options.rate)
    produced = ground.pace.produced_per_second
    loss = ground.loss
    layout = plan_layout(
        Load(
            lag={part.unread.partition: part.lag for part in ground.partitions},
            rate_per_consumer=rate,
            produced_per_second=produced or 0.0,
            replicas=stream.consumers.replicas,
            max_consumers=stream.consumers.max_consumers,
            seconds_to_loss=loss.seconds,
        ),
        factor,
    )
    hold = _plan_hold(workspace, stream, ground, layout)
    disk = _check_disk(ground, layout, held=hold["needed"])
    facts = Facts(
        stream=stream,
        layout=layout,
        temporary_topic=name_temporary_topic(stream.topic, recovery_id),
        recovery_group=name_recovery_group(stream.group, recovery_id),
        replication=ground.topic.replication,
        members=tuple(str(member) for member in ground.group.members),
        launching=_tell_launching(workspace, stream, recovery_id),
        changes=hold["changes"],
    )
    warnings = [
        *ground.warnings,
        *warn_about_stream(workspace, stream),
        *warn_about_backlog(stream, ground, options.start),
        *warn_about_speed(stream, ground, layout, given=options.rate is not None),
        *warn_about_keys(stream, ground, order),
        *warn_about_disk(disk),
    ]
    return {
        "version": 1,
        "kind": EXPAND,
        "stream": stream.name,
        "cluster": stream.cluster,
        "topic": stream.topic,
        "topic_id": ground.topic.topic_id,
        "partition_count": ground.topic.partitions,
        "group": stream.group,
        "partitions": [_freeze_partition(part) for part in ground.partitions],
        "lag": ground.lag,
        "lost": ground.lost,
        "temporary": {
            "topic": facts.temporary_topic,
            "partitions": layout.partitions,
            "replication": facts.replication,
        },
        "recovery_group": facts.recovery_group,
        "order": order,
        "partitioner": stream.partitioner,
        "isolation": stream.isolation,
        "factor": factor,
        "replicas": stream.consumers.replicas,
        "consumers": layout.consumers,
        "rate_per_consumer": round(rate, 3),
        "rate_source": rate_source,
        "consumed_per_second": _round(ground.pace.consumed, 3),
        "produced_per_second": _round(produced, 3),
        "seconds_to_drain_now": _round(layout.seconds_now),
        "seconds_to_drain_expanded": _round(layout.seconds_expanded),
        "seconds_to_loss": _round(loss.seconds),
        "loss_by": loss.by,
        "wins": layout.wins,
        "smallest_factor": layout.smallest_factor,
        "canary": {
            "messages": layout.canary.messages,
            "partitions": {str(p): n for p, n in layout.canary.partitions.items()},
        },
        "hold": hold,
        "disk": {
            "needed": disk.needed_bytes,
            "usable": disk.usable_bytes,
            "enough": disk.enough,
            "told": disk.reason,
        },
        "members": list(facts.members),
        "stopped": tell_stopped(facts),
        "created": tell_created(facts),
        "raised": tell_raised(facts),
        "given_back": tell_given_back(facts),
        "max_lag_at_cutover": stream.expand.max_lag_at_cutover,
        "other_groups": list(ground.other_groups),
        "other_topics": list(ground.other_topics),
        "launch": freeze_consumers(config, stream),
        "transactional_prefix": config.kafka_ledger.transactional_prefix,
        "approval": stream.approval,
        "configuration": fingerprint_expansion(config, stream),
        "options": {
            "rate": options.rate,
            "factor": options.factor,
            "order": options.order,
            "start": options.start,
            "allow": sorted(options.allow),
        },
        "warnings": list(dict.fromkeys(warnings)),
        "origin": None if options.origin is None else dict(options.origin),
        "planned_by": find_identity().to_json(),
        "planned_at": format_time(utc_now()),
    }


def _freeze_partition(part: Behind) -> dict[str, Any]:
    at = part.unread.oldest_at
    return {
        "partition": part.unread.partition,
        "log_start": part.unread.log_start,
        "committed": part.committed,
        "end": part.unread.end,
        "lag": part.lag,
        "lost": part.lost,
        "start": part.unread.start,
        "oldest_unread_at": None if at is None else format_time(at),
    }


def _plan_hold(
    workspace: Workspace, stream: Stream, ground: Ground, layout: Layout
) -> dict[str, Any]:
    """Whether retention is raised, and which settings from what to what."""
    topic = ground.topic
    held = workspace.ledger.holds.list_of_topic(stream.cluster, stream.topic, topic.topic_id)
    settings = compute_expansion_hold(topic.config)
    # Somebody's hold may end meanwhile: then retention would be as short as before it.
    settings |= {name: FOREVER for hold in held for name in hold.raised}
    needed = bool(settings) and (bool(held) or needs_hold(ground.loss, layout.seconds_expanded))
    changes = {
        name: {"from": topic.config.get(name, FOREVER), "to": value}
        for name, value in sorted(settings.items())
    }
    return {"needed": needed, "changes": changes if needed else {}}


def _check_disk(ground: Ground, layout: Layout, *, held: bool) -> DiskCheck:
    """Room for the copy, and for what the topic keeps while its retention is raised."""
    replication = ground.topic.replication
    backlog = [
        PartitionBacklog(part.unread.partition, part.lag, part.unread.log_start, part.unread.high)
        for part in ground.partitions
    ]
    copy = estimate_copy(ground.log_dirs, backlog, replication=replication)
    if not held:
        return copy
    growth = measure_growth(ground.log_dirs, ground.recent)
    drain = layout.seconds_expanded
    seconds = _LONG_SECONDS if drain is None else HOLD_TIMES * drain + HOLD_SECONDS
    kept = estimate_hold(
        ground.log_dirs, growth, timedelta(seconds=seconds), replication=replication
    )
    return combine_checks(copy, kept)


def _tell_launching(workspace: Workspace, stream: Stream, recovery_id: str) -> tuple[str, str]:
    """How the original consumers and those on the temporary topic are started and stopped."""
    assert stream.consumers is not None
    launcher = make_launcher(stream.consumers, workspace.properties(stream), lambda _: None)
    original = fleet_of(workspace, stream, Role.ORIGINAL)
    recovery = fleet_of(
        workspace,
        stream,
        Role.RECOVERY,
        recovery_id,
        topic=name_temporary_topic(stream.topic, recovery_id),
        group=name_recovery_group(stream.group, recovery_id),
    )
    mask = workspace.config.mask_secrets
    return mask(launcher.describe(original)), mask(launcher.describe(recovery))


def _refuse_full(stream: Stream, plan: Mapping[str, Any]) -> None:
    if plan["disk"]["enough"] is False and ALLOW_DISK not in plan["options"]["allow"]:
        raise Refused(
            f"the copy does not fit: {plan['disk']['told']}",
            subject=f"topic {stream.topic}",
            hint="make room on the brokers' disks; `--allow disk` plans in spite of it",
        )


def _check_word(word: str, known: tuple[str, ...], option: str) -> None:
    if word not in known:
        raise UsageError(
            f"{word!r} is none of {', '.join(known)}" if len(known) > 1 else f"only {known[0]}",
            subject=option,
            hint=f"one of {', '.join(known)}",
        )


def _round(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
