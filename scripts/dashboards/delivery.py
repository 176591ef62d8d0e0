"""Outboxes, look-back and idempotent consumers: what waits, what is parked, what came of it.

Several processes tell of one table: its figures are the largest of theirs. Counters are added up.
"""

from __future__ import annotations

from scripts.dashboards import panels
from scripts.dashboards.documents import Parts, variable

OUTBOX = 'outbox=~"$outbox"'
MARKS = 'marks=~"$marks"'
# From here on the alerts BacklogOutboxLate and BacklogLookBackLate tell.
LATE = ((None, panels.GREEN), (300, panels.ORANGE), (600, panels.RED))
EVEN = (8, 8)


def delivery() -> Parts:
    shown = [
        panels.stat(
            "Not sent",
            "Rows of outboxes that are pending, in progress or parked.",
            f"sum(max by (outbox, state) (backlog_outbox_messages{{{OUTBOX}}}))",
            none="unknown",
        ),
        panels.stat(
            "Oldest that waits",
            "Since the oldest row of an outbox was added that waits to be sent.",
            f"max(backlog_outbox_oldest_seconds{{{OUTBOX}}})",
            LATE,
            unit="s",
            none="nothing waits",
        ),
        panels.stat(
            "Parked in outboxes",
            "Each holds up the later messages of its key: `backlogctl outbox list --state parked`.",
            f'sum(max by (outbox) (backlog_outbox_messages{{{OUTBOX}, state="parked"}}))',
            panels.ZERO_IS_GOOD,
            none="unknown",
        ),
        panels.stat(
            "Look-back: oldest",
            "Since the first record of the oldest message that has not ended and is not parked.",
            'max(backlog_lookback_oldest_seconds{state!="parked"})',
            LATE,
            unit="s",
            none="nothing waits",
        ),
        panels.stat(
            "Look-back: parked",
            "Nothing is done about them until somebody resumes them: "
            "`backlogctl lookback list --state parked`.",
            'max(backlog_lookback_messages{state="parked"})',
            panels.ZERO_IS_GOOD,
            none="unknown",
        ),
        panels.stat(
            "Databases that nobody reads",
            "Of outboxes and look-back: what waits in them is unknown.",
            "(count(min by (outbox) "
            f'(backlog_outbox_away{{{OUTBOX}, what="database"}}) == 1) or vector(0))'
            " + (1 - max(backlog_lookback_database_up) or vector(0))",
            panels.ZERO_IS_GOOD,
        ),
        panels.table(
            "Outboxes, the worst first",
            "One row for each outbox.",
            [
                ("Oldest", f"max by (outbox) (backlog_outbox_oldest_seconds{{{OUTBOX}}})"),
                *(
                    (
                        title,
                        f'max by (outbox) (backlog_outbox_messages{{{OUTBOX}, state="{state}"}})',
                    )
                    for title, state in (
                        ("Parked", "parked"),
                        ("Pending", "pending"),
                        ("In progress", "in_progress"),
                    )
                ),
            ],
            ("outbox",),
            first="Oldest",
            overrides=[
                panels.override("Oldest", unit="s", **panels.fill(LATE)),
                panels.override("Parked", **panels.fill(panels.ZERO_IS_GOOD)),
            ],
            size=(24, 7),
        ),
        panels.graph(
            "Outboxes: rows that are not sent",
            "By state; none while the database does not answer.",
            [
                (
                    f"max by (outbox, state) (backlog_outbox_messages{{{OUTBOX}}})",
                    "{{outbox}}: {{state}}",
                )
            ],
        ),
        panels.graph(
            "Outboxes: age of the oldest row that waits",
            "Parked ones left out; no line where none waits.",
            [(f"max by (outbox) (backlog_outbox_oldest_seconds{{{OUTBOX}}})", "{{outbox}}")],
            "s",
            LATE,
        ),
        panels.graph(
            "Outboxes: attempts each second",
            "`refused` counts towards parking, `away` does not.",
            [
                (
                    "sum by (outbox, outcome) "
                    f"(rate(backlog_outbox_attempts_total{{{OUTBOX}}}[$__rate_interval]))",
                    "{{outbox}}: {{outcome}}",
                )
            ],
            "mps",
            size=EVEN,
        ),
        panels.graph(
            "Outboxes: parked, and sent twice, in an hour",
            "Parked after the last attempt; acknowledged after the lease, so that another sender "
            "sends it once more with the same id.",
            [
                (
                    f"sum by (outbox) (increase(backlog_outbox_{name}_total{{{OUTBOX}}}[1h]))",
                    f"{{{{outbox}}}}: {title}",
                )
                for name, title in (("parked", "parked"), ("late_marks", "sent twice"))
            ],
            size=EVEN,
        ),
        panels.graph(
            "Outboxes: Kafka or the database away",
            "1 while a sender gets no answer.",
            [
                (
                    f"max by (outbox, what) (backlog_outbox_away{{{OUTBOX}}})",
                    "{{outbox}}: {{what}}",
                )
            ],
            "none",
            panels.ZERO_IS_GOOD,
            size=EVEN,
        ),
        panels.graph(
            "Look-back: messages that have not ended",
            "By state.",
            [("max by (state) (backlog_lookback_messages)", "{{state}}")],
        ),
        panels.graph(
            "Look-back: age of the oldest message",
            "By state, since its first record.",
            [('max by (state) (backlog_lookback_oldest_seconds{state!="parked"})', "{{state}}")],
            "s",
            LATE,
        ),
        panels.graph(
            "Look-back: forwards each second",
            "`refused` by the brokers counts towards parking, `failed` does not.",
            [
                (
                    "sum by (outcome) (rate(backlog_lookback_forwards_total[$__rate_interval]))",
                    "{{outcome}}",
                )
            ],
            "mps",
            size=EVEN,
        ),
        panels.graph(
            "Look-back: questions each minute",
            "By service and what came of them; `failed` and `refused` are no answers.",
            [
                (
                    "60 * sum by (service, outcome) "
                    "(rate(backlog_lookback_checks_total[$__rate_interval])) > 0",
                    "{{service}}: {{outcome}}",
                )
            ],
            "cpm",
            size=EVEN,
        ),
        panels.graph(
            "Look-back: records that did not fit, in an hour",
            "By kind: `backlogctl lookback list --incidents`.",
            [("sum by (kind) (increase(backlog_lookback_incidents_total[1h])) > 0", "{{kind}}")],
            steps=panels.ZERO_IS_GOOD,
            size=EVEN,
        ),
        panels.graph(
            "Look-back: records each second",
            "What applications said on the look-back topic, as it is stored.",
            [
                (
                    "sum by (event) (rate(backlog_lookback_events_total[$__rate_interval]))",
                    "{{event}}",
                )
            ],
            "mps",
            size=EVEN,
        ),
        panels.graph(
            "Look-back: failures of its parts each minute",
            "After each the part begins again; the log of `backlogctl lookback run` says why.",
            [
                (
                    "60 * sum by (part) "
                    "(rate(backlog_lookback_failures_total[$__rate_interval])) > 0",
                    "{{part}}",
                )
            ],
            "cpm",
            size=EVEN,
        ),
        panels.graph(
            "Look-back: instances",
            "That Prometheus asks.",
            [('count(backlog_lookback_forwards_total{outcome="sent"})', "instances")],
            lowest=True,
            size=EVEN,
        ),
        panels.graph(
            "Idempotent consumers: messages each second",
            "Handled for the first time, and repeats that were skipped.",
            [
                (
                    "sum by (marks, outcome) (rate(backlog_once_messages_total"
                    f'{{{MARKS}, outcome=~"first|repeat"}}[$__rate_interval]))',
                    "{{marks}}: {{outcome}}",
                )
            ],
            "mps",
        ),
        panels.graph(
            "Idempotent consumers: what else came of messages, each minute",
            "`unmarked` and `lease_lost` may be handled twice, a `conflict` has the id of another.",
            [
                (
                    "60 * sum by (marks, outcome) (rate(backlog_once_messages_total"
                    f'{{{MARKS}, outcome!~"first|repeat"}}[$__rate_interval])) > 0',
                    "{{marks}}: {{outcome}}",
                )
            ],
            "cpm",
        ),
    ]
    variables = [
        variable("outbox", "Outbox", "backlog_outbox_away"),
        variable("marks", "Marks", "backlog_once_messages_total"),
    ]
    return Parts(
        "backlog-delivery",
        "Backlog: delivery",
        "Outboxes, look-back and idempotent consumers: what waits, what is parked, what came of "
        "messages.",
        variables,
        shown,
    )
