"""All groups, the worst first."""

from __future__ import annotations

from scripts.dashboards import panels
from scripts.dashboards.documents import Parts, variable

WHERE = 'cluster=~"$cluster", stream=~"$stream", group=~"$group"'
TROUBLE = "stall|stop|rewind|beyond_end|losing|lost"
LEGEND = "{{group}} / {{topic}}"


def overview() -> Parts:
    link = (
        "/d/backlog-stream?${DS:queryparam}&var-cluster=${__data.fields.cluster}"
        "&var-group=${__data.fields.group}&var-topic=${__data.fields.topic}&${__url_time_range}"
    )
    shown = [
        panels.stat(
            "Groups in trouble",
            f"Groups and topics whose verdict is {TROUBLE.replace('|', ', ')}.",
            f'count(backlog_verdict{{{WHERE}, verdict=~"{TROUBLE}"}} == 1) or vector(0)',
            panels.ZERO_IS_GOOD,
        ),
        panels.stat(
            "Lost messages",
            "Offsets that groups will never read and that were neither put back nor waived: at "
            "most so many messages.",
            f"sum(backlog_lost_messages{{{WHERE}}})",
            panels.ZERO_IS_GOOD,
        ),
        panels.stat(
            "First loss in",
            "Until retention passes a committed offset at the earliest, if things go on as in the "
            "window.",
            f"min(backlog_seconds_to_loss{{{WHERE}}})",
            panels.TO_LOSS,
            unit="s",
            none="not in sight",
        ),
        panels.stat(
            "Will be lost",
            "Of what is unread now, how much will be lost if things go on as in the window.",
            f"sum(backlog_expected_loss_messages{{{WHERE}}})",
            panels.ZERO_IS_GOOD,
        ),
        panels.stat(
            "Unread",
            "Unread offsets of all groups that still exist.",
            f"sum(backlog_lag_messages{{{WHERE}}})",
        ),
        panels.stat(
            "Oldest sample",
            "How long ago the stream or cluster was looked at that waits longest. From five "
            "minutes on nothing here can be trusted.",
            'max(backlog_sample_age_seconds{cluster=~"$cluster"})',
            panels.SAMPLE_AGE,
            unit="s",
            none="no sampler",
        ),
        panels.table(
            "Groups, the worst first",
            "One row for each group and topic. A click on a topic opens its dashboard.",
            [
                ("Verdict", panels.rank("backlog_verdict", WHERE, panels.PLACE)),
                ("Loss in", f"min by ({panels.PLACE}) (backlog_seconds_to_loss{{{WHERE}}})"),
                (
                    "Will be lost",
                    f"max by ({panels.PLACE}) (backlog_expected_loss_messages{{{WHERE}}})",
                ),
                ("Lost", f"max by ({panels.PLACE}) (backlog_lost_messages{{{WHERE}}})"),
                ("Unread", f"sum by ({panels.PLACE}) (backlog_lag_messages{{{WHERE}}})"),
                ("Oldest unread", f"max by ({panels.PLACE}) (backlog_lag_seconds{{{WHERE}}})"),
                ("Drained in", f"max by ({panels.PLACE}) (backlog_seconds_to_drain{{{WHERE}}})"),
            ],
            ("stream", "group", "topic", "cluster"),
            first="Verdict",
            overrides=[
                panels.word("Verdict", panels.map_verdicts()),
                panels.override("Loss in", unit="s", **panels.fill(panels.TO_LOSS)),
                panels.override("Lost", **panels.fill(panels.ZERO_IS_GOOD)),
                panels.override("Oldest unread", unit="s"),
                panels.override("Drained in", unit="s"),
                panels.override("topic", links=[{"title": "Open its dashboard", "url": link}]),
            ],
        ),
        panels.graph(
            "Unread messages",
            "The twenty groups with the most unread offsets.",
            [(f"topk(20, sum by ({panels.PLACE}) (backlog_lag_messages{{{WHERE}}}))", LEGEND)],
        ),
        panels.graph(
            "Until messages are lost",
            "The twenty groups that lose first; a group without a line loses nothing that can be "
            "foreseen.",
            [
                (
                    f"bottomk(20, min by ({panels.PLACE}) (backlog_seconds_to_loss{{{WHERE}}}))",
                    LEGEND,
                )
            ],
            "s",
            panels.TO_LOSS,
            lowest=True,
        ),
        panels.graph(
            "Lost messages",
            "Offsets that were neither put back nor waived.",
            [(f"topk(20, max by ({panels.PLACE}) (backlog_lost_messages{{{WHERE}}}) > 0)", LEGEND)],
        ),
        panels.graph(
            "Free space of the brokers' disks",
            "By DescribeLogDirs; a broker without a line does not tell.",
            [
                (
                    'min by (cluster, broker) (backlog_disk_usable_bytes{cluster=~"$cluster"})',
                    "{{cluster}} broker {{broker}}",
                )
            ],
            "bytes",
            lowest=True,
        ),
        panels.graph(
            "Until the brokers' disks are full",
            "At the rate of the last quarter of an hour; a broker without a line does not fill.",
            [
                (
                    'min by (cluster, broker) (backlog_disk_seconds_to_full{cluster=~"$cluster"})',
                    "{{cluster}} broker {{broker}}",
                )
            ],
            "s",
            panels.TO_LOSS,
            lowest=True,
        ),
        panels.graph(
            "Age of the newest sample",
            "Of each stream, and of each cluster as a whole.",
            [
                (
                    'max by (cluster, stream) (backlog_sample_age_seconds{cluster=~"$cluster"})',
                    "{{cluster}} {{stream}}",
                )
            ],
            "s",
            panels.SAMPLE_AGE,
        ),
        panels.graph(
            "Length of a pass",
            "How long one look at all groups of a cluster takes; it should be well under "
            "`watch.interval`.",
            [('max by (cluster) (backlog_pass_seconds{cluster=~"$cluster"})', "{{cluster}}")],
            "s",
            size=(8, 7),
        ),
        panels.graph(
            "Looks that failed",
            "Each minute.",
            [
                (
                    "60 * sum by (cluster, stream) "
                    '(rate(backlog_sample_failures_total{cluster=~"$cluster"}[$__rate_interval]))',
                    "{{cluster}} {{stream}}",
                )
            ],
            "cpm",
            size=(8, 7),
        ),
        panels.graph(
            "Groups, and partitions left out",
            "Partitions are left out where there are more than `watch.max_partitions`.",
            [
                ('max by (cluster) (backlog_groups{cluster=~"$cluster"})', "{{cluster}}: groups"),
                (
                    'max by (cluster) (backlog_partitions_left_out{cluster=~"$cluster"})',
                    "{{cluster}}: partitions left out",
                ),
            ],
            size=(8, 7),
        ),
    ]
    variables = [
        variable("cluster", "Cluster", "backlog_verdict"),
        variable("stream", "Stream", 'backlog_verdict{cluster=~"$cluster"}'),
        variable("group", "Group", 'backlog_verdict{cluster=~"$cluster", stream=~"$stream"}'),
    ]
    return Parts(
        "backlog-overview",
        "Backlog: overview",
        "Every consumer group that backlogctl watches: how it is doing, the worst first.",
        variables,
        shown,
    )
