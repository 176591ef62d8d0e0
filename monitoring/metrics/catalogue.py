"""Every metric that `watch` exports of clusters, groups and recoveries.

docs/metrics.md is made from this and the catalogues of delivery; rules and dashboards are checked
against them.
"""

from __future__ import annotations

from typing import Literal

from backlogctl_delivery.metrics import Metric

Family = Literal["backlog", "kafka_exporter", "kafka_lag_exporter"]

_PLACE = ("cluster", "group", "topic", "stream")
_GAP = ("cluster", "stream", "group", "topic", "state", "cause")
_STREAM = ("cluster", "stream")
_RECOVERY = ("recovery", "stream", "kind", "stops_consumers")

_OF_LOOKS: tuple[Metric, ...] = (
    Metric(
        "backlog_verdict",
        (*_PLACE, "verdict"),
        "1 for the verdict that holds now; one series for each group and topic.",
    ),
    Metric(
        "backlog_partition_verdict",
        (*_PLACE, "partition", "verdict"),
        "1 for the verdict that holds now; only partitions whose verdict is not ok.",
    ),
    Metric(
        "backlog_partition_course",
        (*_PLACE, "partition", "verdict"),
        "As backlog_partition_verdict, without what is lost already: that stays until it is put "
        "back, and hides no consumer that stops meanwhile.",
    ),
    Metric(
        "backlog_unseen",
        (*_PLACE, "what"),
        "1 where something may not, or cannot, be read: `retention`, `oldest` unread message, "
        "`disks`, `bookmarks`, `tails` (whether the last one or two unread offsets hold data), "
        "`transactions` (who left one open); of a cluster (group, topic and stream empty) "
        "`groups`, the list of all of them. What needs it is unknown, and absent here.",
    ),
    Metric(
        "backlog_member_partitions",
        (*_PLACE, "client_id", "host"),
        "Partitions of the topic that a member has; only of streams whose verdict asks for "
        "somebody. Members of one client id and host are one.",
    ),
    Metric(
        "backlog_member_commit_age_seconds",
        (*_PLACE, "client_id", "host"),
        "Since the newest commit of its partitions; absent where no sample of the window saw one.",
    ),
    Metric(
        "backlog_doctor_findings",
        ("stream", "check", "level"),
        "What `backlogctl doctor` found at the last look; without a stream: of the tool itself, "
        "outboxes and look-back. `loses` and `stops` ask for somebody.",
    ),
    Metric(
        "backlog_doctor_timestamp_seconds",
        ("stream",),
        "When the doctor last looked, in seconds since 1970.",
    ),
    Metric(
        "backlog_lag_messages",
        (*_PLACE, "partition"),
        "Unread offsets that still exist; what retention removed is not in it.",
    ),
    Metric(
        "backlog_lag_seconds",
        (*_PLACE, "partition"),
        "Age of the oldest unread message, by interpolation between samples.",
    ),
    Metric(
        "backlog_transaction_held_messages",
        (*_PLACE, "partition"),
        "Offsets that lie behind a transaction that has been open for too long: readers of "
        "committed data do not get them. Absent where none has.",
    ),
    Metric(
        "backlog_transaction_open_seconds",
        (*_PLACE, "partition"),
        "How long that transaction has been open.",
    ),
    Metric(
        "backlog_seconds_to_drain",
        _PLACE,
        "Until nothing is unread, at the rates of reading and writing over the window; absent "
        "without progress, and for a small lag that stays.",
    ),
    Metric(
        "backlog_seconds_to_loss",
        (*_PLACE, "partition"),
        "Until retention passes the committed offset at the earliest, if things go on as in the "
        "window; absent where none is in sight.",
    ),
    Metric(
        "backlog_expected_loss_messages",
        _PLACE,
        "Of what is unread now, how much will be lost if things go on as in the window.",
    ),
    Metric(
        "backlog_lost_messages",
        _PLACE,
        "Offsets that the group will never read and that were neither put back nor waived.",
    ),
)
OF_LEDGER: tuple[Metric, ...] = (
    Metric("backlog_gaps", _GAP, "Gaps in the ledger."),
    Metric("backlog_gap_messages", _GAP, "Offsets in those gaps, where they are known."),
    Metric(
        "backlog_recovery_state",
        (*_RECOVERY, "state"),
        "1 for the state it is in: recoveries that are not at an end, and the last of each stream. "
        "`stops_consumers` says whether the group's own consumers stop while it is worked on.",
    ),
    Metric("backlog_recovery_state_seconds", _RECOVERY, "How long it has been in its state."),
    Metric(
        "backlog_recovery_runner_alive",
        _RECOVERY,
        "1 while a runner holds its lease; only while it is running.",
    ),
    Metric(
        "backlog_recovery_consumers_stopped",
        _RECOVERY,
        "1 while the recovery keeps the group's own consumers stopped.",
    ),
    Metric(
        "backlog_temporary_topic_messages",
        _RECOVERY,
        "Messages relayed and not handled when last read, at most: only the temporary topic has "
        "them. Absent where it was not read yet.",
    ),
    Metric(
        "backlog_recovery_progress_ratio",
        _RECOVERY,
        "Done of all, 0 to 1: messages injected, or drained.",
    ),
    Metric(
        "backlog_recovery_done_messages",
        _RECOVERY,
        "Messages put back, or handled by the recovery's consumers.",
    ),
    Metric(
        "backlog_injected_messages",
        _RECOVERY,
        "Messages put back; only recoveries that were planned for gaps.",
    ),
    Metric("backlog_relayed_messages", _RECOVERY, "Messages copied to the temporary topic."),
    Metric(
        "backlog_quarantined_messages",
        _RECOVERY,
        "Rows of the recovery's plan that could not be built.",
    ),
    Metric(
        "backlog_retention_held_seconds",
        ("cluster", "topic", "stream", "holder"),
        "How long a topic's retention has been raised by a hold.",
    ),
    Metric(
        "backlog_hold_not_in_force",
        ("cluster", "topic", "stream", "holder"),
        "1 where the broker does not have what a hold raised: somebody changed it.",
    ),
    Metric(
        "backlog_retention_overdue_seconds",
        ("cluster", "topic", "stream", "holder"),
        "How long ago a hold should have been given back; 0 before that.",
    ),
    Metric(
        "backlog_disk_usable_bytes",
        ("cluster", "broker"),
        "Free space of a broker's disks, by DescribeLogDirs; absent where it does not tell.",
    ),
    Metric(
        "backlog_disk_total_bytes",
        ("cluster", "broker"),
        "Size of a broker's disks, by DescribeLogDirs; absent where it does not tell.",
    ),
    Metric(
        "backlog_disk_seconds_to_full",
        ("cluster", "broker"),
        "Until a broker's disks are full, if they go on filling as in the last quarter of an hour; "
        "absent where they do not fill, or nothing is known.",
    ),
    Metric(
        "backlog_audit_verdict",
        ("cluster", "stream", "audit", "verdict"),
        "1 for what the last audit of this name came to: clean, lost, suspect or unknown.",
    ),
    Metric(
        "backlog_audit_missing_messages",
        ("cluster", "stream", "audit"),
        "Messages that are lost by the last audit of this name, for all that is known.",
    ),
    Metric(
        "backlog_audit_age_seconds",
        ("cluster", "stream", "audit"),
        "Since the last audit of this name began.",
    ),
)
_OF_WATCHING: tuple[Metric, ...] = (
    Metric(
        "backlog_sequence_up",
        _STREAM,
        "1 where the newest messages of a stream with `sequence: true` could be read, else 0.",
    ),
    Metric(
        "backlog_sequence_behind_messages",
        _STREAM,
        "Offsets up to the end of the log that the sequence check has not read yet; absent while "
        "that is unknown.",
    ),
    Metric(
        "backlog_sequence_checked_messages",
        _STREAM,
        "Numbered messages that the sequence check has read since the start.",
        type="counter",
    ),
    Metric(
        "backlog_sequence_unreadable_messages",
        _STREAM,
        "Messages whose stamp could not be read since the start.",
        type="counter",
    ),
    Metric(
        "backlog_sequence_missing_messages",
        (*_STREAM, "certainty"),
        "Numbered messages that are not in the log, and can no longer be on their way: `lost`, or "
        "`suspect` where something else may explain it. Those found within `watch.horizon`; absent "
        "while nothing can be told.",
    ),
    Metric(
        "backlog_sample_age_seconds",
        ("cluster", "stream"),
        "Since the last good look at a stream, or at all groups of a cluster (stream empty), by "
        "this process' own clock; since the start where there was none yet.",
    ),
    Metric(
        "backlog_sample_failures",
        ("cluster", "stream"),
        "Looks that failed since the start.",
        type="counter",
    ),
    Metric(
        "backlog_pass_seconds",
        ("cluster",),
        "How long the last pass over all groups of the cluster took.",
    ),
    Metric("backlog_groups", ("cluster",), "Groups in the last pass."),
    Metric(
        "backlog_groups_unreadable",
        ("cluster",),
        "Groups whose commits could not be read in the last pass; the last that was seen of them "
        "is shown for `watch.window`.",
    ),
    Metric(
        "backlog_ledger_up",
        (),
        "1 if the ledger answered when it was last asked, a minute ago at most. Where it is 0, "
        "gaps, recoveries and holds are absent.",
    ),
    Metric(
        "backlog_partitions_left_out",
        ("cluster",),
        "Partitions of groups that are not exported, because `watch.max_partitions` is reached.",
    ),
    Metric(
        "backlog_notifications",
        ("hook", "outcome"),
        "Messages to a hook of `watch.hooks`: `delivered`; tries that `failed` (no answer, 429, "
        "5xx) or were `refused`, which are made again; `replaced` by later news before any try.",
        type="counter",
    ),
)
OURS = (*_OF_LOOKS, *OF_LEDGER, *_OF_WATCHING)

_TOPIC = ("topic", "partition")
_CONSUMER = ("consumergroup", "topic", "partition")
KAFKA_EXPORTER: tuple[Metric, ...] = tuple(
    Metric(name, labels, text)
    for name, labels, text in (
        ("kafka_brokers", (), "Brokers of the cluster."),
        ("kafka_topic_partitions", ("topic",), "Partitions of the topic."),
        ("kafka_topic_partition_current_offset", _TOPIC, "High watermark."),
        ("kafka_topic_partition_oldest_offset", _TOPIC, "Log start offset."),
        ("kafka_topic_partition_leader", _TOPIC, "Id of the leader's broker."),
        ("kafka_topic_partition_replicas", _TOPIC, "Replicas."),
        ("kafka_topic_partition_in_sync_replica", _TOPIC, "Replicas in sync."),
        (
            "kafka_topic_partition_under_replicated_partition",
            _TOPIC,
            "1 where a replica is not in sync.",
        ),
        ("kafka_consumergroup_current_offset", _CONSUMER, "Committed offset."),
        (
            "kafka_consumergroup_current_offset_sum",
            ("consumergroup", "topic"),
            "Committed offsets of all partitions together.",
        ),
        ("kafka_consumergroup_lag", _CONSUMER, "Unread offsets."),
        (
            "kafka_consumergroup_lag_sum",
            ("consumergroup", "topic"),
            "Unread offsets of all partitions together.",
        ),
    )
)

_MEMBER = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")
_GROUP = ("cluster_name", "group")
KAFKA_LAG_EXPORTER: tuple[Metric, ...] = tuple(
    Metric(name, labels, text)
    for name, labels, text in (
        (
            "kafka_partition_latest_offset",
            ("cluster_name", "topic", "partition"),
            "High watermark.",
        ),
        (
            "kafka_partition_earliest_offset",
            ("cluster_name", "topic", "partition"),
            "Log start offset.",
        ),
        ("kafka_consumergroup_group_offset", _MEMBER, "Committed offset; member labels empty."),
        ("kafka_consumergroup_group_lag", _MEMBER, "Unread offsets; member labels empty."),
        (
            "kafka_consumergroup_group_lag_seconds",
            _MEMBER,
            "Age of the oldest unread message; member labels empty.",
        ),
        ("kafka_consumergroup_group_max_lag", _GROUP, "The partition with the most unread."),
        ("kafka_consumergroup_group_max_lag_seconds", _GROUP, "The oldest unread message's age."),
        ("kafka_consumergroup_group_sum_lag", _GROUP, "Unread offsets of all partitions."),
        (
            "kafka_consumergroup_group_topic_sum_lag",
            ("cluster_name", "group", "topic"),
            "Unread offsets of all partitions of a topic.",
        ),
    )
)

CATALOGUE: tuple[Metric, ...] = (*OURS, *KAFKA_EXPORTER, *KAFKA_LAG_EXPORTER)
BY_NAME = {metric.name: metric for metric in CATALOGUE}
