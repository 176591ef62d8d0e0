"""Names of the DAGs; how often tasks are tried, how long they may take, in which pool they run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from datetime import time, timedelta
from typing import Any

from backlogctl.config.root import Outline, read_outline

DETECT, RECOVER, NIGHTLY = "detect_backlog", "recover_backlog", "nightly_backfill"
OFFLOAD, AUDIT = "emergency_offload", "nightly_audit"
ASKING = (RECOVER, OFFLOAD)  # in whose runs a person approves
APPROVE, REJECT = "Approve", "Reject"  # the buttons of a question
ALERTS = "backlogctl"  # the alias of the assets that alarming streams are events of
HOLD_TASKS = ("hold.approve", "hold.carry_out")  # of `recover_backlog`
PROPOSED = "proposed"  # the XCom of the first task, with the hold to ask about
REASON = "reason"  # the XCom of a task that failed, was skipped or waits
FOUND = "found"  # the XCom of an audit that did not end well
CHOSEN = "chosen"  # the XCom that says what the first task has chosen
DEPLOYMENT = "backlogctl_deployment"  # the variable with the id of this Airflow
DEPLOYMENT_OF = "This Airflow, in the ledger: never the same in two. Without it a new one is made."
TAGS = ("backlogctl", "kafka")
# Work that was cut off goes on with the next try, so there are many, and soon. How long it rightly
# takes nobody knows: a night, or until an operator's `resume`.
WORK: Mapping[str, Any] = {
    "retries": 10,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}
PLAN: Mapping[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=30)}
# What asks Kafka and the ledger for a moment: longer means that it hangs.
LOOK: Mapping[str, Any] = {**PLAN, "execution_timeout": timedelta(minutes=15)}
# A wrong answer, such as one's own where a colleague's is asked, is asked again.
ASK: Mapping[str, Any] = {"retries": 20, "retry_delay": timedelta(seconds=1)}
# Later somebody has looked, or it is too late.
HOLD_WITHIN = timedelta(hours=24)
# Names of pools that exist; where they are not set the tasks run in Airflow's own.
SPARK_POOL, EXPAND_POOL = "BACKLOG_SPARK_POOL", "BACKLOG_EXPAND_POOL"
_DEFAULT = "default_pool"


def name_question(recovery_id: str) -> str:
    """The run of `recover_backlog` in which a night asks about its plan."""
    return f"nightly__{recovery_id}"


def find_pool(*, spark: bool) -> str:
    """The pool in which plans and work run, of those that need a Spark of their own or not."""
    variable = SPARK_POOL if spark else EXPAND_POOL
    return os.environ.get(variable) or _DEFAULT


# What the DAGs show of backlog.yaml when they are parsed: never a reason not to load.

__all__ = ["UTC", "find_cron", "find_zone", "read_outline"]

UTC = "UTC"


def find_zone(outline: Outline) -> str:
    """The time zone of the schedule: that of most streams that can be rebuilt, the first of two.

    Streams of another zone wait within the run for their own window.
    """
    zones = Counter(
        stream.off_peak.timezone
        for stream in outline.streams
        if stream.rebuilds and stream.off_peak is not None
    )
    return zones.most_common(1)[0][0] if zones else UTC


def find_cron(outline: Outline, zone: str) -> str:
    """Once a night, when the most windows of the zone are open: `30 0 * * *`.

    Streams whose window opens later wait for it. Without any window it is half past midnight.
    """
    windows = [
        stream.off_peak.window()
        for stream in outline.streams
        if stream.rebuilds and stream.off_peak is not None and stream.off_peak.timezone == zone
    ]
    starts = sorted({window.start for window in windows}) or [time(0, 30)]

    def count_open(start: time) -> int:
        return sum(
            w.start <= start < w.end if w.start < w.end else start >= w.start or start < w.end
            for w in windows
        )

    best = max(starts, key=lambda start: (count_open(start), -starts.index(start)))
    return f"{best.minute} {best.hour} * * *"
