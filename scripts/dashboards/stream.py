"""One group on one topic, by partition."""

from __future__ import annotations

from scripts.dashboards import panels
from scripts.dashboards.documents import Parts, variable

WHERE = 'cluster=~"$cluster", group=~"$group", topic=~"$topic"'
TOPIC = 'cluster=~"$cluster", topic=~"$topic"'
LEGEND = "{{topic}}/{{partition}}"
PART = "cluster, group, topic, partition"
GROUP = "cluster, group, topic"


def stream() -> Parts:
    shown = [
        panels.stat(
            "Verdict",
            "The worst that applies.",
            f"max({panels.rank('backlog_verdict', WHERE, GROUP)})",
            unit="none",
            mappings=panels.map_verdicts(),
            none="unknown",
        ),
        panels.stat(
            "Lost",
            "Offsets that the group will never read and that were neither put back nor waived: at "
            "most so many messages.",
            f"sum(backlog_lost_messages{{{WHERE}}})",
            panels.ZERO_IS_GOOD,
        ),
        panels.stat(
            "First loss in",
            "Until retention passes the committed offset of a partition at the earliest.",
            f"min(backlog_seconds_to_loss{{{WHERE}}})",
            panels.TO_LOSS,
            unit="s",
            none="not in sight",
        ),
        panels.stat(
            "Will be lost",
            "Of what is unread now, if things go on as in the window.",
            f"sum(backlog_expected_loss_messages{{{WHERE}}})",
            panels.ZERO_IS_GOOD,
        ),
        panels.stat(
            "Unread", "Unread offsets that still exist.", f"sum(backlog_lag_messages{{{WHERE}}})"
        ),
        panels.stat(
            "Drained in",
            "From the slope of the lag; none while it does not shrink.",
            f"max(backlog_seconds_to_drain{{{WHERE}}})",
            unit="s",
            none="not in sight",
        ),
        panels.timeline(
            "Verdict over time",
            "One line for each group and topic.",
            panels.rank("backlog_verdict", WHERE, GROUP),
            "{{group}} / {{topic}}",
        ),
        panels.graph(
            "Unread by partition",
            "Unread offsets that still exist; what retention removed is not in it. One partition "
            "far above the others: a hot key, or a consumer that hangs.",
            [(f"max by ({PART}) (backlog_lag_messages{{{WHERE}}})", LEGEND)],
        ),
        panels.graph(
            "Age of the oldest unread message",
            "How long ago it was published.",
            [(f"max by ({PART}) (backlog_lag_seconds{{{WHERE}}})", LEGEND)],
            "s",
        ),
        panels.graph(
            "Until messages are lost",
            "By partition; one without a line loses nothing that can be foreseen.",
            [(f"min by ({PART}) (backlog_seconds_to_loss{{{WHERE}}})", LEGEND)],
            "s",
            panels.TO_LOSS,
            lowest=True,
        ),
        panels.graph(
            "Drained, or lost first?",
            "Where the time to the loss lies under the time to the drain, messages will be lost.",
            [
                (f"max by ({GROUP}) (backlog_seconds_to_drain{{{WHERE}}})", "{{topic}}: drained"),
                (f"min by ({GROUP}) (backlog_seconds_to_loss{{{WHERE}}})", "{{topic}}: first loss"),
            ],
            "s",
        ),
        panels.table(
            "Partitions in trouble, the worst first",
            "Partitions whose verdict is not ok.",
            [
                ("Verdict", panels.rank("backlog_partition_verdict", WHERE, PART)),
                (
                    "Loss in",
                    f"min by ({PART}) (backlog_seconds_to_loss{{{WHERE}}}"
                    f" and on ({PART}) backlog_partition_verdict)",
                ),
                (
                    "Unread",
                    f"max by ({PART}) (backlog_lag_messages{{{WHERE}}}"
                    f" and on ({PART}) backlog_partition_verdict)",
                ),
                (
                    "Oldest unread",
                    f"max by ({PART}) (backlog_lag_seconds{{{WHERE}}}"
                    f" and on ({PART}) backlog_partition_verdict)",
                ),
            ],
            ("topic", "partition", "group", "cluster"),
            first="Verdict",
            overrides=[
                panels.word("Verdict", panels.map_verdicts()),
                panels.override("Loss in", unit="s", **panels.fill(panels.TO_LOSS)),
                panels.override("Oldest unread", unit="s"),
            ],
            size=(12, 9),
        ),
        panels.table(
            "Gaps",
            "Ranges that the group will never read, by their state and cause. Open ones have no "
            "plan yet; the size of some is not known.",
            [
                (
                    "Messages",
                    f"max by ({GROUP}, state, cause) (backlog_gap_messages{{{WHERE}}})",
                ),
                ("Gaps", f"max by ({GROUP}, state, cause) (backlog_gaps{{{WHERE}}})"),
            ],
            ("state", "cause", "topic", "group", "cluster"),
            first="Messages",
            overrides=[],
            size=(12, 9),
        ),
        panels.graph(
            "Lost messages",
            "Offsets that were neither put back nor waived.",
            [(f"max by ({GROUP}) (backlog_lost_messages{{{WHERE}}})", "{{group}} / {{topic}}")],
            size=(8, 8),
        ),
        panels.graph(
            "Retention raised",
            "How long a hold has been there, and how long ago it should have been given back.",
            [
                (
                    f"max by (topic, holder) (backlog_retention_held_seconds{{{TOPIC}}})",
                    "{{topic}} by {{holder}}",
                ),
                (
                    f"max by (topic, holder) (backlog_retention_overdue_seconds{{{TOPIC}}})",
                    "{{topic}} by {{holder}}, overdue",
                ),
            ],
            "s",
            panels.OVERDUE,
            size=(8, 8),
        ),
        panels.graph(
            "Age of the newest sample",
            "What is shown here is that old.",
            [
                (
                    'max by (cluster, stream) (backlog_sample_age_seconds{cluster=~"$cluster"})',
                    "{{cluster}} {{stream}}",
                )
            ],
            "s",
            panels.SAMPLE_AGE,
            size=(8, 8),
        ),
    ]
    variables = [
        variable("cluster", "Cluster", "backlog_verdict"),
        variable("stream", "Stream", 'backlog_verdict{cluster=~"$cluster", stream!=""}'),
        variable("group", "Group", 'backlog_verdict{cluster=~"$cluster", stream=~"$stream"}'),
        variable(
            "topic",
            "Topic",
            'backlog_verdict{cluster=~"$cluster", stream=~"$stream", group=~"$group"}',
        ),
    ]
    return Parts(
        "backlog-stream",
        "Backlog: stream",
        "One consumer group on one topic, by partition: how far behind, what is lost, how long is "
        "left.",
        variables,
        shown,
    )
