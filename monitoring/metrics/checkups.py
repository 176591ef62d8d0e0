"""Families of what is looked at now and then: members of streams in trouble, the doctor."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from backlog.clock import utc_now
from monitoring.board import BoardState, MemberLook
from monitoring.metrics.catalogue import BY_NAME


def make_gauge(name: str) -> GaugeMetricFamily:
    """An empty family of the catalogue."""
    return GaugeMetricFamily(name, BY_NAME[name].help, labels=BY_NAME[name].labels)


def describe_members(seen: BoardState) -> Iterator[Metric]:
    """Members by client id and host."""
    partitions = make_gauge("backlog_member_partitions")
    ages = make_gauge("backlog_member_commit_age_seconds")
    now = utc_now()
    for stream, members in sorted(seen.members.items()):
        if (status := seen.streams.get(stream)) is None:
            continue
        places: defaultdict[tuple[str, str], list[MemberLook]] = defaultdict(list)
        for one in members:
            places[one.client_id, one.host].append(one)
        for place, same in sorted(places.items()):
            labels = (status.cluster, status.group, status.topic, stream, *place)
            partitions.add_metric(labels, sum(len(one.partitions) for one in same))
            known = [one.last_commit for one in same if one.last_commit is not None]
            if known:
                ages.add_metric(labels, max(0.0, (now - max(known)).total_seconds()))
    yield partitions
    yield ages


def describe_checkups(seen: BoardState) -> Iterator[Metric]:
    """How many findings of each check, and when it was looked."""
    findings = make_gauge("backlog_doctor_findings")
    times = make_gauge("backlog_doctor_timestamp_seconds")
    for stream, checkup in sorted(seen.checkups.items()):
        counts = Counter((one.check, str(one.level)) for one in checkup.findings)
        for (check, level), count in sorted(counts.items()):
            findings.add_metric((stream, check, level), count)
        times.add_metric((stream,), checkup.taken_at.timestamp())
    yield findings
    yield times
