"""All groups, the worst first."""

from __future__ import annotations

from scripts.dashboards.documents import Parts, variable
from scripts.dashboards.panels import (
    FILLED,
    PLACE,
    SAMPLE_AGE,
    TO_LOSS,
    ZERO_IS_GOOD,
    fill,
    graph,
    map_verdicts,
    override,
    rank,
    stat,
    table,
)

WHERE = 'cluster=~"$cluster", stream=~"$stream", group=~"$group"'
TROUBLE = "stall|stop|rewind|beyond_end|losing|lost"
LEGEND = "{{group}} / {{topic}}"


def overview() -> Parts:
    link = (
        "/d/backlog-stream?${DS:queryparam}&var-cluster=${__data.fields.cluster}"
        "&var-group=${__data.fields.group}&var-topic=${__data.fields.topic}&${__url_time_range}"
    )
    panels = [
        stat(
            "Groups in trouble",
            f"Groups and topics whose verdict is {TROUBLE.replace('|', ', ')}.",
            f'count(backlog_verdict{{{WHERE}, verdict=~"{TROUBLE}"}} == 1) or vector(0)',
            ZERO_IS_GOOD,
        ),
        stat(
            "Lost messages",
            "Offsets that groups will never read and that were neither put back nor waived: at "
            "most so many messages.",
            f"sum(backlog_lost_messages{{{WHERE}}})",
            ZERO_IS_GOOD,
        ),
        stat(
            "First loss in",
            "Until retention passes a committed offset at the earliest, if things go on as in the "
            "window.",
            f"min(backlog_seconds_to_loss{{{WHERE}}})",
            TO_LOSS,
            unit="s",
            none="not in sight",
        ),
        stat(
            "Will be lost",
            "Of what is unread now, how much will be lost if things go on as in the window.",
            f"sum(backlog_expected_loss_messages{{{WHERE}}})",
            ZERO_IS_GOOD,
        ),
        stat(
            "Unread",
            "Unread offsets of all groups that still exist.",
            f"sum(backlog_lag_messages{{{WHERE}}})",
        ),
        stat(
            "Oldest sample",
            "How long ago the stream or cluster was looked at that waits longest. From five "
            "minutes on nothing here can be trusted.",
            'max(backlog_sample_age_seconds{cluster=~"$cluster"})',
            SAMPLE_AGE,
            unit="s",
            none="no sampler",
        ),
        table(
            "Groups, the worst first",
            "One row for each group and topic. A click on a topic opens its dashboard.",
            [
                ("Verdict", rank("backlog_verdict", WHERE, PLACE)),
                ("Loss in", f"min by ({PLACE}) (backlog_seconds_to_loss{{{WHERE}}})"),
                (
                    "Will be lost",
                    f"max by ({PLACE}) (backlog_expected_loss_messages{{{WHERE}}})",
                ),
                ("Lost", f"max by ({PLACE}) (backlog_lost_messages{{{WHERE}}})"),
                ("Unread", f"sum by ({PLACE}) (backlog_lag_messages{{{WHERE}}})"),
                ("Oldest unread", f"max by ({PLACE}) (backlog_lag_seconds{{{WHERE}}})"),
                ("Drained in", f"max by ({PLACE}) (backlog_seconds_to_drain{{{WHERE}}})"),
            ],
            ("stream", "group", "topic", "cluster"),
            first="Verdict",
            overrides=[
                override("Verdict", mappings=map_verdicts(), custom__cellOptions=FILLED),
                override("Loss in", unit="s", **fill(TO_LOSS)),
                override("Lost", **fill(ZERO_IS_GOOD)),
                override("Oldest unread", unit="s"),
                override("Drained in", unit="s"),
                override("topic", links=[{"title": "Open its dashboard", "url": link}]),
            ],
        ),
        graph(
            "Unread messages",
            "The twenty groups with the most unread offsets.",
            [(f"topk(20, sum by ({PLACE}) (backlog_lag_messages{{{WHERE}}}))", LEGEND)],
        ),
        graph(
            "Until messages are lost",
            "The twenty groups that lose first; a group without a line loses nothing that can be "
            "foreseen.",
            [(f"bottomk(20, min by ({PLACE}) (backlog_seconds_to_loss{{{WHERE}}}))", LEGEND)],
            "s",
            TO_LOSS,
            lowest=True,
        ),
        graph(
            "Lost messages",
            "Offsets that were neither put back nor waived.",
            [(f"topk(20, max by ({PLACE}) (backlog_lost_messages{{{WHERE}}}) > 0)", LEGEND)],
        ),
        graph(
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
        graph(
            "Until the brokers' disks are full",
            "At the rate of the last quarter of an hour; a broker without a line does not fill.",
            [
                (
                    'min by (cluster, broker) (backlog_disk_seconds_to_full{cluster=~"$cluster"})',
                    "{{cluster}} broker {{broker}}",
                )
            ],
            "s",
            TO_LOSS,
            lowest=True,
        ),
        graph(
            "Age of the newest sample",
            "Of each stream, and of each cluster as a whole.",
            [
                (
                    'max by (cluster, stream) (backlog_sample_age_seconds{cluster=~"$cluster"})',
                    "{{cluster}} {{stream}}",
                )
            ],
            "s",
            SAMPLE_AGE,
        ),
        graph(
            "Length of a pass",
            "How long one look at all groups of a cluster takes; it should be well under "
            "`watch.interval`.",
            [('max by (cluster) (backlog_pass_seconds{cluster=~"$cluster"})', "{{cluster}}")],
            "s",
            size=(8, 7),
        ),
        graph(
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
        graph(
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
        panels,
    )
