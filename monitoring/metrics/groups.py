"""Lines of the text format.

prometheus-client writes the small families. For those with a line a partition it took some 20 times
as long as this (`make bench-watch`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from backlogctl.monitoring.metrics.catalogue import BY_NAME, Family
from backlogctl.monitoring.verdict.status import GroupStatus, PartitionStatus, Verdict
from backlogctl.monitoring.watch.board import ClusterPass, TopicPartitionState
from backlogctl_delivery import metrics as families
from backlogctl_delivery.metrics import Metric
from backlogctl_delivery.visible import escape_name

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
# family -> its lines without HELP and TYPE
Lines = Mapping[str, bytes]


def escape_value(text: str) -> str:
    """A label's value as it stands between its quotes; what cannot be seen in it is escaped.

    Alerts and dashboards show labels as they are.
    """
    return escape_name(text).translate(_ESCAPES)


class GaugeSeries(families.Gauge):
    """A small family, which prometheus-client writes."""

    def __init__(self, name: str) -> None:
        super().__init__(BY_NAME[name])


class CounterSeries(families.Counter):
    """Likewise, of a counter."""

    def __init__(self, name: str) -> None:
        super().__init__(BY_NAME[name])


def write_labels(names: Iterable[str], values: Iterable[str]) -> str:
    """`a="1",b="2"`, escaped, without braces."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{escape_value(value)}"' for name, value in pairs)


def write_head(metric: Metric) -> bytes:
    name = metric.exported_name
    help_text = metric.help.translate(_HELP_ESCAPES)
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.type}\n".encode()


# The families that are written once a look: those of groups, partitions and topics.

_PLACE = ("cluster", "group", "topic", "stream")
# kafka-lag-exporter's labels of a member, which are empty where a group is looked at from outside.
_NO_MEMBER = 'member_host="",consumer_id="",client_id=""'


class _Writer:
    def __init__(self) -> None:
        self._lines: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, name: str, labels: str, value: float | None) -> None:
        """A line; none where the value is not known."""
        if value is None:
            return
        place = f"{{{labels}}}" if labels else ""
        self._lines[name].append(f"{name}{place} {value or 0!r}\n")  # a slope may be -0.0

    def finish(self) -> Lines:
        return {name: "".join(lines).encode() for name, lines in self._lines.items()}


def write_groups(
    statuses: Iterable[GroupStatus],
    others: Collection[Family] = (),
    *,
    with_cluster: bool = False,
    by_partition: bool = False,
) -> Lines:
    """Lines of groups on topics.

    Partitions that are ok are one line without a partition, of all but streams: a sum, the oldest,
    the first loss. Queries that aggregate by group and topic give the same.

    Args:
        by_partition: a line for each partition of every group.
        others: other exporters' names that are written too.
        with_cluster: kafka_exporter's names get a `cluster` label, which they do not have there:
            it serves one cluster.
    """
    out = _Writer()
    for status in statuses:
        each = by_partition or bool(status.stream)
        shown = [part for part in status.partitions if each or not _is_ok(part)]
        rest = _Rest([part for part in status.partitions if not each and _is_ok(part)])
        _write_ours(out, status, shown, rest)
        if "kafka_exporter" in others:
            _write_kafka_exporter(out, status, shown, rest, with_cluster=with_cluster)
        if "kafka_lag_exporter" in others:
            _write_kafka_lag_exporter(out, status, shown, rest)
    return out.finish()


def write_topics(
    done: ClusterPass,
    others: Collection[Family] = (),
    *,
    with_cluster: bool = False,
    each: Collection[str] | None = None,
) -> Lines:
    """Lines of a cluster: what of it is unseen, and its brokers and topics, which only the other
    exporters' names show.

    Args:
        each: topics with a line for each partition; None: all. Of others only partitions whose
            replicas are not all in sync have one, and the sum of the rest is without a partition.
    """
    out = _Writer()
    cluster = escape_value(done.cluster)
    place = write_labels(_PLACE, (done.cluster, "", "", ""))
    for one in done.unseen:
        out.add("backlog_unseen", f'{place},what="{one.what}"', 1)
    if "kafka_exporter" in others:
        prefix = f'cluster="{cluster}",' if with_cluster else ""
        out.add("kafka_brokers", prefix.rstrip(","), done.brokers)
        for topic, partitions in done.topics.items():
            labels = f'{prefix}topic="{escape_value(topic)}"'
            out.add("kafka_topic_partitions", labels, len(partitions))
            shown, rest = _divide_topic(topic, partitions, each)
            for part in shown:
                _write_topic_partition(out, f'{labels},partition="{part.partition}"', part)
            if rest:
                high, low = _sum_offsets(rest)
                out.add("kafka_topic_partition_current_offset", labels, high)
                out.add("kafka_topic_partition_oldest_offset", labels, low)
                out.add("kafka_topic_partition_under_replicated_partition", labels, 0)
    if "kafka_lag_exporter" in others:
        for topic, partitions in done.topics.items():
            prefix = f'cluster_name="{cluster}",topic="{escape_value(topic)}"'
            shown, rest = _divide_topic(topic, partitions, each)
            for part in shown:
                labels = f'{prefix},partition="{part.partition}"'
                out.add("kafka_partition_latest_offset", labels, part.high)
                out.add("kafka_partition_earliest_offset", labels, part.log_start)
            if rest:
                high, low = _sum_offsets(rest)
                out.add("kafka_partition_latest_offset", prefix, high)
                out.add("kafka_partition_earliest_offset", prefix, low)
    return out.finish()


def write_group_totals(statuses: Iterable[GroupStatus]) -> Lines:
    """kafka-lag-exporter's totals of a group over all its topics."""
    groups: dict[tuple[str, str], list[GroupStatus]] = defaultdict(list)
    for status in statuses:
        groups[status.cluster, status.group].append(status)
    out = _Writer()
    for (cluster, group), members in groups.items():
        labels = write_labels(("cluster_name", "group"), (cluster, group))
        parts = [part for status in members for part in status.partitions]
        out.add("kafka_consumergroup_group_sum_lag", labels, _sum_known(p.lag for p in parts))
        out.add("kafka_consumergroup_group_max_lag", labels, _max_known(p.lag for p in parts))
        seconds = _max_known(part.lag_seconds for part in parts)
        out.add("kafka_consumergroup_group_max_lag_seconds", labels, seconds)
    return out.finish()


def _is_ok(part: PartitionStatus) -> bool:
    return part.verdict is Verdict.OK and part.course is Verdict.OK


class _Rest:
    """What the partitions have together that have no line of their own."""

    def __init__(self, partitions: Sequence[PartitionStatus]) -> None:
        self.committed = _sum_known(part.committed for part in partitions)
        self.lag = _sum_known(part.lag for part in partitions)
        self.lag_seconds = _max_known(part.lag_seconds for part in partitions)
        losses = [part.seconds_to_loss for part in partitions if part.seconds_to_loss is not None]
        self.seconds_to_loss = min(losses, default=None)


def _divide_topic(
    topic: str, partitions: Sequence[TopicPartitionState], each: Collection[str] | None
) -> tuple[Sequence[TopicPartitionState], Sequence[TopicPartitionState]]:
    """Those with a line of their own, and the rest."""
    if each is None or topic in each:
        return partitions, ()
    shown = [one for one in partitions if one.in_sync < one.replicas or one.leader < 0]
    return shown, [one for one in partitions if one not in shown]


def _sum_offsets(partitions: Iterable[TopicPartitionState]) -> tuple[int | None, int | None]:
    known = list(partitions)
    return _sum_known(one.high for one in known), _sum_known(one.log_start for one in known)


def _write_ours(
    out: _Writer, status: GroupStatus, shown: Iterable[PartitionStatus], rest: _Rest
) -> None:
    place = write_labels(_PLACE, (status.cluster, status.group, status.topic, status.stream))
    out.add("backlog_verdict", f'{place},verdict="{status.verdict}"', 1)
    out.add("backlog_seconds_to_drain", place, status.seconds_to_drain)
    out.add("backlog_expected_loss_messages", place, status.expected_loss)
    out.add("backlog_lost_messages", place, status.lost)
    for one in status.unseen:
        out.add("backlog_unseen", f'{place},what="{one.what}"', 1)
    out.add("backlog_lag_messages", place, rest.lag)
    out.add("backlog_lag_seconds", place, rest.lag_seconds)
    out.add("backlog_seconds_to_loss", place, rest.seconds_to_loss)
    for part in shown:
        labels = f'{place},partition="{part.partition}"'
        out.add("backlog_lag_messages", labels, part.lag)
        out.add("backlog_lag_seconds", labels, part.lag_seconds)
        out.add("backlog_seconds_to_loss", labels, part.seconds_to_loss)
        if part.held is not None:
            out.add("backlog_transaction_held_messages", labels, part.held.messages)
            out.add("backlog_transaction_open_seconds", labels, part.held.seconds_open)
        if part.verdict is not Verdict.OK:
            out.add("backlog_partition_verdict", f'{labels},verdict="{part.verdict}"', 1)
        if part.course is not Verdict.OK:
            out.add("backlog_partition_course", f'{labels},verdict="{part.course}"', 1)


def _write_kafka_exporter(
    out: _Writer,
    status: GroupStatus,
    shown: Iterable[PartitionStatus],
    rest: _Rest,
    *,
    with_cluster: bool,
) -> None:
    names, values = ("consumergroup", "topic"), (status.group, status.topic)
    if with_cluster:
        names, values = ("cluster", *names), (status.cluster, *values)  # type: ignore[assignment]
    place = write_labels(names, values)
    commits = _sum_known(part.committed for part in status.partitions)
    out.add("kafka_consumergroup_current_offset_sum", place, commits)
    out.add("kafka_consumergroup_lag_sum", place, _sum_known(p.lag for p in status.partitions))
    out.add("kafka_consumergroup_current_offset", place, rest.committed)
    out.add("kafka_consumergroup_lag", place, rest.lag)
    for part in shown:
        labels = f'{place},partition="{part.partition}"'
        out.add("kafka_consumergroup_current_offset", labels, part.committed)
        out.add("kafka_consumergroup_lag", labels, part.lag)


def _write_kafka_lag_exporter(
    out: _Writer, status: GroupStatus, shown: Iterable[PartitionStatus], rest: _Rest
) -> None:
    place = write_labels(
        ("cluster_name", "group", "topic"), (status.cluster, status.group, status.topic)
    )
    lag = _sum_known(part.lag for part in status.partitions)
    out.add("kafka_consumergroup_group_topic_sum_lag", place, lag)
    together = f"{place},{_NO_MEMBER}"
    out.add("kafka_consumergroup_group_offset", together, rest.committed)
    out.add("kafka_consumergroup_group_lag", together, rest.lag)
    out.add("kafka_consumergroup_group_lag_seconds", together, rest.lag_seconds)
    for part in shown:
        labels = f'{place},partition="{part.partition}",{_NO_MEMBER}'
        out.add("kafka_consumergroup_group_offset", labels, part.committed)
        out.add("kafka_consumergroup_group_lag", labels, part.lag)
        out.add("kafka_consumergroup_group_lag_seconds", labels, part.lag_seconds)


def _sum_known(values: Iterable[int | None]) -> int | None:
    """As the other exporters: a partition without a commit does not take the sum away."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _max_known(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _write_topic_partition(out: _Writer, labels: str, part: TopicPartitionState) -> None:
    out.add("kafka_topic_partition_current_offset", labels, part.high)
    out.add("kafka_topic_partition_oldest_offset", labels, part.log_start)
    out.add("kafka_topic_partition_leader", labels, part.leader)
    out.add("kafka_topic_partition_replicas", labels, part.replicas)
    out.add("kafka_topic_partition_in_sync_replica", labels, part.in_sync)
    out.add(
        "kafka_topic_partition_under_replicated_partition",
        labels,
        int(part.in_sync < part.replicas),
    )


def list_others(done: ClusterPass, streams: Mapping[str, GroupStatus]) -> list[GroupStatus]:
    """The groups of a pass that are not shown as streams already."""
    places = {(status.cluster, status.group, status.topic) for status in streams.values()}
    return [s for s in done.groups if (s.cluster, s.group, s.topic) not in places]
