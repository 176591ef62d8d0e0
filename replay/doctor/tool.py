"""Whether every job that is configured for a stream has its rights."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Stream
from backlogctl.errors import BacklogError
from backlogctl.formats import format_bytes, format_duration
from backlogctl.jars import SUPPORTED_JAVA, find_java, find_java_version
from backlogctl.kafka.capabilities import Capability, Taking, read_takings
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.rights import Right, make_grants, read_rights
from backlogctl.monitoring.doctor.checks import (
    CheckFinding,
    CheckLevel,
    CheckScope,
    UnreadablePart,
    endure,
    read_part,
)
from backlogctl.monitoring.doctor.facts import Controller, read_controller
from backlogctl.monitoring.offsets.bulk_look import SKEW_SECONDS
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.rights import (
    DOCTOR,
    HOLD,
    SEE,
    WATCH,
    describe_rights,
    find_principal,
    list_rights,
)
from backlogctl.values import GapState

_RIGHTS_SECONDS = 30.0


def list_wanted(workspace: Workspace, stream: Stream) -> dict[str, tuple[Right, ...]]:
    """By job its rights; jobs that the stream is not configured for, or the login is not meant
    for, are left out."""
    config = workspace.config
    kinds = [kind.name for kind in workspace.kinds if kind.is_configured(stream)]
    jobs = [SEE, *(job for job in (WATCH, HOLD, *kinds, DOCTOR) if config.is_meant_for(job))]
    return {job: list_rights(workspace.kinds, job, config, stream) for job in jobs}


@CheckScope.RIGHTS.check(
    "rights",
    "What the tool may do",
    "What a recovery needs is asked for before anything is touched: a missing right stops it.",
    "By job, in docs/permissions.md. `jobs` of the configuration says what a login is meant for: "
    "with `jobs: [see]` one that only watches is asked for nothing else.",
)
def judge_rights(workspace: Workspace, stream: Stream) -> Iterator[CheckFinding]:
    """One finding for each job that misses rights."""
    properties, subject = workspace.properties(stream), f"stream {stream.name}"
    wanted = list_wanted(workspace, stream)
    every = tuple(dict.fromkeys(right for rights in wanted.values() for right in rights))
    found = read_part(
        "what the tool is allowed",
        lambda: read_rights(properties, every, Deadline(_RIGHTS_SECONDS)),
    )
    if isinstance(found, UnreadablePart):
        yield found.to_finding()
        return
    if found.unknown:
        yield CheckFinding(
            *("rights", CheckLevel.UNKNOWN, subject),
            f"whether the tool may do what is needed: {found.reason}",
            "compare its rules with docs/permissions.md",
        )
    told: set[Right] = set()
    for job, rights in wanted.items():
        missing = [right for right in rights if right in found.missing and right not in told]
        told.update(missing)
        if not missing:
            continue
        needed = any(right.needed for right in missing)
        lines = make_grants(missing, find_principal(properties), properties)
        yield CheckFinding(
            "rights",
            CheckLevel.STOPS if needed else CheckLevel.UNKNOWN,
            subject,
            f"{job}: the tool may not {describe_rights(missing)}",
            "who administers the cluster grants it with"
            if job == SEE
            else "who administers the cluster grants it with these lines; where this login is not "
            f"meant for it, name `jobs` without {job}",
            tuple(lines),
        )


# The tool itself: ledger, clocks, disk of staging, versions, Java and Spark.

TESTED_KAFKA = (3, 7)
# Longer than any lease is extended for: two hosts would both hold it.
SKEW_STOPS = 60.0
LEAST_FREE = 1_000_000_000
# A staged message with its index, where its size is not known.
MESSAGE_BYTES = 2_000
_SECONDS, _CHECK_SECONDS = 15.0, 30.0


Takings = Mapping[str, Mapping[Capability, Taking] | UnreadablePart | None]
"""By cluster what it takes, or why that is not known; None where its login cannot ask."""


def read_cluster_takings(workspace: Workspace, streams: Sequence[Stream]) -> Takings:
    """Each cluster of these streams once."""
    clusters = {stream.cluster: workspace.properties(stream) for stream in streams}
    return {
        name: read_part(
            "which requests the cluster takes",
            partial(read_takings, properties, Deadline(_SECONDS)),
        )
        for name, properties in clusters.items()
    }


def describe_takings(takings: Takings) -> dict[str, dict[str, str]]:
    """By cluster and request, as `--json` has it."""
    return {
        name: {one.request: taking.taken for one, taking in found.items()}
        for name, found in takings.items()
        if isinstance(found, Mapping)
    }


def judge_host(
    workspace: Workspace, streams: Sequence[Stream], there: Sequence[Stream], takings: Takings
) -> Iterator[CheckFinding]:
    """Everything that is the same for all streams; each cluster's clock once.

    Args:
        there: the streams whose clusters answer.
    """
    clusters = {stream.cluster: workspace.properties(stream) for stream in there}
    builds = workspace.config.is_meant_for("rebuild")
    rebuilds = [stream for stream in streams if builds and stream.source is not None]
    parts = [
        _judge_ledger_clock(workspace),
        *map(_judge_controller, clusters.values()),
        *(_judge_requests(workspace, name, there, takings[name]) for name in clusters),
        *([_judge_staging(workspace, rebuilds), _judge_spark()] if rebuilds else []),
    ]
    for part in parts:
        yield from endure("the tool", "its examination", part)


@CheckScope.TOOL.check(
    "ledger",
    "The ledger",
    "Gaps, plans, approvals and progress are in it: without it nothing is planned or run.",
    "An SQLite file is looked through for damaged pages (`PRAGMA quick_check`), for 30 seconds; "
    "every other command does so for half a second.",
)
def _judge_ledger_clock(workspace: Workspace) -> Iterator[CheckFinding]:
    ledger = workspace.ledger
    whole = read_part("the ledger's file", lambda: ledger.check_pages(_CHECK_SECONDS))
    if isinstance(whole, UnreadablePart):
        yield CheckFinding(
            *("ledger", CheckLevel.STOPS, f"ledger {ledger.label}", whole.error.message),
            whole.error.hint or "check `ledger.url`",
        )
        return
    before = utc_now()
    now = read_part("the ledger's clock", ledger.now)
    if isinstance(now, UnreadablePart):
        yield CheckFinding(
            *("ledger", CheckLevel.STOPS, f"ledger {ledger.label}", now.error.message),
            now.error.hint or "check `ledger.url`",
        )
        return
    behind, ahead = (before - now).total_seconds(), (now - utc_now()).total_seconds()
    yield from _judge_skew(f"ledger {ledger.label}", max(0.0, ahead) - max(0.0, behind))


@CheckScope.TOOL.check(
    "clock",
    "Clocks",
    "Leases, holds, windows and forecasts compare times of several hosts.",
    "The clock of the cluster's controller (DescribeQuorum, KIP-836) and of a PostgreSQL "
    "ledger are compared with this host's.",
)
def _judge_controller(properties: Properties) -> Iterator[CheckFinding]:
    subject = f"cluster {find_addresses(properties)}"
    found = read_part(
        "the controller's clock", lambda: read_controller(properties, Deadline(_SECONDS))
    )
    if isinstance(found, UnreadablePart):
        yield found.to_finding()
    elif found is None:
        yield CheckFinding(
            *("clock", CheckLevel.UNKNOWN, subject),
            "the controller's clock cannot be asked for with this login",
            "compare it by hand: `date -u` on both hosts",
        )
    else:
        yield from _judge_skew(subject, found.skew)
        yield from _judge_version(subject, found)


@CheckScope.TOOL.check(
    "requests",
    "Requests that the cluster refuses",
    "Managed clusters and proxies refuse requests, some of them whatever rights are granted: what "
    "they would tell stays unknown, and a recovery that needs them cannot go on.",
    "What one broker has is what its ApiVersions names: while a cluster is upgraded others may "
    "differ. ListGroups and DescribeLogDirs are asked, each time. That a request is named is no "
    "proof that it is answered. `--json` has all that are used, by cluster, in `requests`: "
    "`answered`, `named` (not asked), `not there`, `refused`.",
)
def _judge_requests(
    workspace: Workspace,
    cluster: str,
    streams: Sequence[Stream],
    found: Mapping[Capability, Taking] | UnreadablePart | None,
) -> Iterator[CheckFinding]:
    """One finding for each; what was only not asked has none."""
    ours = [stream for stream in streams if stream.cluster == cluster]
    jobs = {job for stream in ours for job in list_wanted(workspace, stream)}
    if isinstance(found, UnreadablePart):
        yield found.to_finding()
        return
    if found is None:
        yield CheckFinding(
            *("requests", CheckLevel.UNKNOWN, f"cluster {cluster}"),
            "which requests it takes cannot be asked for with this login",
            "docs/clusters.md has the logins that can, and what services are known to refuse",
        )
        return
    for capability, taking in found.items():
        if not taking.why:
            continue
        stopped = [job for job in capability.jobs if job in jobs]
        yield CheckFinding(
            *("requests", CheckLevel.STOPS if stopped else CheckLevel.UNKNOWN),
            f"cluster {cluster}",
            f"{capability.request}: {taking.why}; {capability.without}"
            + (f", which stops {', '.join(stopped)}" if stopped else ""),
            "docs/clusters.md says what each verb does without it",
        )


@CheckScope.TOOL.check(
    "versions",
    "Versions",
    "With versions that it was never tried with, the tool may fail when it is needed.",
    "Tested: Kafka 3.7 to 4.4, Java 17. Java 21 is taken; older brokers may work.",
)
def _judge_version(subject: str, found: Controller) -> Iterator[CheckFinding]:
    if found.version < TESTED_KAFKA:
        yield CheckFinding(
            *("versions", CheckLevel.WARNS, subject),
            f"its brokers speak as Kafka {'.'.join(map(str, found.version))}; tested is "
            f"{'.'.join(map(str, TESTED_KAFKA))} and later",
            "try a plan, and an expansion with --try, before they are needed",
        )


def _judge_skew(subject: str, skew: float) -> Iterator[CheckFinding]:
    if abs(skew) > SKEW_SECONDS:
        yield CheckFinding(
            "clock",
            CheckLevel.STOPS if abs(skew) > SKEW_STOPS else CheckLevel.WARNS,
            subject,
            f"its clock is {format_duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} "
            f"this host's ({platform.node()})",
            "let both follow the same time servers: `timedatectl`, `chronyc tracking`",
        )


@CheckScope.TOOL.check(
    "staging-disk",
    "Disk of staging",
    "Rebuilt messages lie in `staging.dir` until they are verified.",
)
def _judge_staging(workspace: Workspace, streams: Sequence[Stream]) -> Iterator[CheckFinding]:
    directory = workspace.config.staging.dir
    there = next(path for path in (directory, *directory.parents) if path.exists())
    subject = f"directory {directory}"
    if not os.access(there, os.W_OK | os.X_OK):
        yield CheckFinding(
            *("staging-disk", CheckLevel.STOPS, subject, f"{there} cannot be written"),
            "give the tool's user write access, or set `staging.dir`",
        )
        return
    needed = max(LEAST_FREE, _count_lost(workspace, streams) * MESSAGE_BYTES)
    free = shutil.disk_usage(there).free
    if free < needed:
        yield CheckFinding(
            *("staging-disk", CheckLevel.STOPS, subject),
            f"{format_bytes(free)} are free, and a rebuild of what is lost may need "
            f"{format_bytes(needed)}",
            "make room, or set `staging.dir` to a larger disk",
        )


def _count_lost(workspace: Workspace, streams: Sequence[Stream]) -> int:
    try:
        return sum(
            gap.count or 0
            for stream in streams
            for gap in workspace.ledger.gaps.list(stream=stream.name)
            if gap.state is GapState.OPEN
        )
    except BacklogError:
        return 0  # the ledger's own finding says so


@CheckScope.TOOL.check(
    "spark",
    "Java and Spark",
    "A rebuild starts Spark, which needs Java and a few libraries.",
)
def _judge_spark() -> Iterator[CheckFinding]:
    try:
        java = find_java()
    except BacklogError as error:
        yield CheckFinding(
            *("spark", CheckLevel.STOPS, error.subject or "java", error.message), error.hint or ""
        )
    else:
        yield from _judge_java(java)
    if importlib.util.find_spec("pyspark") is None:
        yield CheckFinding(
            *(
                "spark",
                CheckLevel.STOPS,
                "pyspark",
                "PySpark is not installed: rebuilds, redrives and archives need it",
            ),
            "pip install 'backlogctl[spark]'",
        )
        return
    from backlogctl.spark_backfill.spark.session import find_spark_jars

    if not (jars := find_spark_jars()).is_dir():
        yield CheckFinding(
            *("spark", CheckLevel.WARNS, f"directory {jars}"),
            "Spark's Kafka connector is not there yet: the first rebuild fetches it from Maven "
            "Central (30 MB)",
            "run a first `backlogctl plan rebuild` where Maven Central can be reached, or set "
            "BACKLOG_MAVEN to a mirror",
        )


def _judge_java(java: Path) -> Iterator[CheckFinding]:
    version = find_java_version()
    if version not in SUPPORTED_JAVA:
        yield CheckFinding(
            *("versions", CheckLevel.WARNS, str(java)),
            f"Java {version}; tested are " + " and ".join(map(str, SUPPORTED_JAVA)),
            "set JAVA_HOME to Java 17 or 21",
        )
