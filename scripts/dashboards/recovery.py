"""Recoveries: how far they are, and who carries them out."""

from __future__ import annotations

from scripts.dashboards.documents import Parts, variable
from scripts.dashboards.panels import (
    FILLED,
    GREEN,
    ORANGE,
    RED,
    ZERO_IS_GOOD,
    bars,
    fill,
    graph,
    map_states,
    override,
    rank_states,
    stat,
    table,
    timeline,
)

WHERE = 'stream=~"$stream", recovery=~"$recovery"'
KEYS = "recovery, stream, kind"
LEGEND = "{{recovery}} {{stream}}"
ALIVE = ((None, GREEN), (0, RED), (1, GREEN))
DONE = ((None, ORANGE), (1, GREEN))
_RATE = "max by (recovery, stream, kind) (rate({metric}{{{where}}}[$__rate_interval]))"


def recovery() -> Parts:
    rates = {
        name: _RATE.format(metric=metric, where=WHERE)
        for name, metric in (
            ("done", "backlog_recovery_done_messages"),
            ("relayed", "backlog_relayed_messages"),
            ("injected", "backlog_injected_messages"),
        )
    }
    panels = [
        stat(
            "Under way",
            "Recoveries that are running.",
            f'count(backlog_recovery_state{{{WHERE}, state="running"}} == 1) or vector(0)',
        ),
        stat(
            "Failed or paused",
            "One that stops the group's consumers leaves it without any while it is so.",
            f'count(backlog_recovery_state{{{WHERE}, state=~"failed|paused"}} == 1) or vector(0)',
            ZERO_IS_GOOD,
        ),
        stat(
            "Without a runner",
            "Running, and nobody carries them out: `backlogctl run R` goes on where it was.",
            f"count(backlog_recovery_runner_alive{{{WHERE}}} == 0) or vector(0)",
            ZERO_IS_GOOD,
        ),
        stat(
            "Done",
            "Messages put back, or handled by the recoveries' consumers.",
            f"sum(backlog_recovery_done_messages{{{WHERE}}})",
        ),
        stat(
            "Relayed",
            "Messages copied to temporary topics.",
            f"sum(backlog_relayed_messages{{{WHERE}}})",
        ),
        stat(
            "Quarantined",
            "Rows that could not be built; `backlogctl show R` has the reasons.",
            f"sum(backlog_quarantined_messages{{{WHERE}}})",
            ZERO_IS_GOOD,
        ),
        table(
            "Recoveries, the worst first",
            "Those that are not at an end, and the last of each stream.",
            [
                ("State", rank_states(WHERE, KEYS)),
                ("For", f"max by ({KEYS}) (backlog_recovery_state_seconds{{{WHERE}}})"),
                ("Runner", f"max by ({KEYS}) (backlog_recovery_runner_alive{{{WHERE}}})"),
                ("Progress", f"max by ({KEYS}) (backlog_recovery_progress_ratio{{{WHERE}}})"),
                ("Done", f"max by ({KEYS}) (backlog_recovery_done_messages{{{WHERE}}})"),
                ("Relayed", f"max by ({KEYS}) (backlog_relayed_messages{{{WHERE}}})"),
                ("Quarantined", f"max by ({KEYS}) (backlog_quarantined_messages{{{WHERE}}})"),
            ],
            ("recovery", "stream", "kind"),
            first="State",
            overrides=[
                override("State", mappings=map_states(), custom__cellOptions=FILLED),
                override("For", unit="s"),
                override(
                    "Runner",
                    **fill(ALIVE),
                    mappings=[
                        {
                            "type": "value",
                            "options": {
                                "0": {"text": "gone", "color": RED, "index": 0},
                                "1": {"text": "alive", "color": GREEN, "index": 1},
                            },
                        }
                    ],
                ),
                override("Progress", unit="percentunit"),
                override("Quarantined", **fill(ZERO_IS_GOOD)),
            ],
            size=(24, 8),
        ),
        bars(
            "Progress",
            "Done of all.",
            f"sort(max by ({KEYS}) (backlog_recovery_progress_ratio{{{WHERE}}}))",
            LEGEND,
            "percentunit",
            DONE,
        ),
        timeline(
            "State over time",
            "One line for each recovery.",
            rank_states(WHERE, KEYS),
            LEGEND,
            mappings=map_states(),
            size=(12, 8),
        ),
        graph(
            "Speed",
            "Messages done, and messages relayed to the temporary topic, a second.",
            [
                (rates["done"], "{{recovery}} done"),
                (rates["relayed"], "{{recovery}} relayed"),
            ],
            "mps",
        ),
        graph(
            "Done and relayed",
            "What lies between the two waits in the temporary topic.",
            [
                (
                    f"max by ({KEYS}) (backlog_recovery_done_messages{{{WHERE}}})",
                    "{{recovery}} done",
                ),
                (f"max by ({KEYS}) (backlog_relayed_messages{{{WHERE}}})", "{{recovery}} relayed"),
            ],
        ),
        graph(
            "Put back",
            "Messages injected, a second.",
            [(rates["injected"], LEGEND)],
            "mps",
            size=(8, 8),
        ),
        graph(
            "Runner",
            "1 while a runner holds the lease of a running recovery.",
            [(f"max by ({KEYS}) (backlog_recovery_runner_alive{{{WHERE}}})", LEGEND)],
            "none",
            ALIVE,
            size=(8, 8),
            lowest=True,
        ),
        graph(
            "Retention raised",
            "By recoveries: given back when they end.",
            [
                (
                    "max by (stream, topic, holder) "
                    '(backlog_retention_held_seconds{stream=~"$stream", holder=~"$recovery"})',
                    "{{topic}} by {{holder}}",
                )
            ],
            "s",
            size=(8, 8),
        ),
    ]
    variables = [
        variable("stream", "Stream", "backlog_recovery_state"),
        variable("recovery", "Recovery", 'backlog_recovery_state{stream=~"$stream"}'),
    ]
    return Parts(
        "backlog-recovery",
        "Backlog: recovery",
        "Recoveries: their state, how far they are and how fast, and whether a runner is alive.",
        variables,
        panels,
    )
