"""Put back at night what was lost: each stream in its own window."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, CronDataIntervalTimetable, task_group

from backlogctl.dags import tasks
from backlogctl.dags.layout import AskForApproval
from backlogctl.dags.links import add_links
from backlogctl.dags.policies import (
    NIGHTLY,
    PLAN,
    TAGS,
    find_cron,
    find_pool,
    find_zone,
    read_outline,
)

DOC = """
### Put back what every stream has lost, or has in an archive, in its off-peak window

What one night does not finish, the next one goes on with. Exact plans of streams with
`approval: auto` go on by themselves; any other plan waits in a run of `recover_backlog`.
One stream's failure leaves the others alone. A stream of another time zone waits for its window.

A **backfill** of old nights takes what was lost in those nights.
"""
outline = read_outline()
zone = find_zone(outline)

with DAG(
    # Never rename this DAG: Airflow would create a new, paused one and the nightly runs would
    # stop unnoticed.
    NIGHTLY,
    description="Rebuilds what was lost, and puts it back in each stream's off-peak window.",
    schedule=CronDataIntervalTimetable(find_cron(outline, zone), timezone=zone),
    start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)),
    catchup=False,
    # A stream of another zone may be at work still when the next night begins.
    max_active_runs=2,
    # Each plan starts a Spark.
    max_active_tasks=4,
    default_args=dict(tasks.DAG_DEFAULTS),
    doc_md=DOC,
    tags=TAGS,
) as dag:
    pool = find_pool(spark=True)

    @task_group(group_id="stream")
    def repair(stream: Any) -> None:
        """One stream's night."""
        work: Any = tasks.plan_night.override(pool=pool)(stream)
        tasks.put_back.override(pool=pool)(work)
        AskForApproval(task_id="ask", work=work, execution_timeout=timedelta(minutes=15), **PLAN)

    repair.expand(stream=tasks.list_night_streams())
    add_links(dag)
