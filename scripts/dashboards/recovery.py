"""Recoveries: how far they are, and who carries them out."""

from __future__ import annotations

from scripts.dashboards import panels
from scripts.dashboards.documents import Parts, variable

WHERE = 'stream=~"$stream", recovery=~"$recovery"'
KEYS = "recovery, stream, kind"
LEGEND = "{{recovery}} {{stream}}"
ALIVE = ((None, panels.GREEN), (0, panels.RED), (1, panels.GREEN))
DONE = ((None, panels.ORANGE), (1, panels.GREEN))
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
    shown = [
        panels.stat(
            "Under way",
            "Recoveries that are running.",
            f'count(backlog_recovery_state{{{WHERE}, state="running"}} == 1) or vector(0)',
        ),
        panels.stat(
            "Failed or paused",
            "One that stops the group's consumers leaves it without any while it is so.",
            f'count(backlog_recovery_state{{{WHERE}, state=~"failed|paused"}} == 1) or vector(0)',
            panels.ZERO_IS_GOOD,
        ),
        panels.stat(
            "Without a runner",
            "Running, and nobody carries them out: `backlogctl run R` goes on where it was.",
            f"count(backlog_recovery_runner_alive{{{WHERE}}} == 0) or vector(0)",
            panels.ZERO_IS_GOOD,
        ),
        panels.stat(
            "Done",
            "Messages put back, or handled by the recoveries' consumers.",
            f"sum(backlog_recovery_done_messages{{{WHERE}}})",
        ),
        panels.stat(
            "Relayed",
            "Messages copied to temporary topics.",
            f"sum(backlog_relayed_messages{{{WHERE}}})",
        ),
        panels.stat(
            "Quarantined",
            "Rows that could not be built; `backlogctl show R` has the reasons.",
            f"sum(backlog_quarantined_messages{{{WHERE}}})",
            panels.ZERO_IS_GOOD,
        ),
        panels.table(
            "Recoveries, the worst first",
            "Those that are not at an end, and the last of each stream.",
            [
                ("State", panels.rank_states(WHERE, KEYS)),
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
                panels.word("State", panels.map_states()),
                panels.override("For", unit="s"),
                panels.override(
                    "Runner",
                    **panels.fill(ALIVE),
                    mappings=[
                        {
                            "type": "value",
                            "options": {
                                "0": {"text": "gone", "color": panels.RED, "index": 0},
                                "1": {"text": "alive", "color": panels.GREEN, "index": 1},
                            },
                        }
                    ],
                ),
                panels.override("Progress", unit="percentunit"),
                panels.override("Quarantined", **panels.fill(panels.ZERO_IS_GOOD)),
            ],
            size=(24, 8),
        ),
        panels.bars(
            "Progress",
            "Done of all.",
            f"sort(max by ({KEYS}) (backlog_recovery_progress_ratio{{{WHERE}}}))",
            LEGEND,
            "percentunit",
            DONE,
        ),
        panels.timeline(
            "State over time",
            "One line for each recovery.",
            panels.rank_states(WHERE, KEYS),
            LEGEND,
            mappings=panels.map_states(),
            size=(12, 8),
        ),
        panels.graph(
            "Speed",
            "Messages done, and messages relayed to the temporary topic, a second.",
            [
                (rates["done"], "{{recovery}} done"),
                (rates["relayed"], "{{recovery}} relayed"),
            ],
            "mps",
        ),
        panels.graph(
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
        panels.graph(
            "Put back",
            "Messages injected, a second.",
            [(rates["injected"], LEGEND)],
            "mps",
            size=(8, 8),
        ),
        panels.graph(
            "Runner",
            "1 while a runner holds the lease of a running recovery.",
            [(f"max by ({KEYS}) (backlog_recovery_runner_alive{{{WHERE}}})", LEGEND)],
            "none",
            ALIVE,
            size=(8, 8),
            lowest=True,
        ),
        panels.graph(
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
        shown,
    )
