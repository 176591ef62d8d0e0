"""Look at night for losses that offsets do not show."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, CronDataIntervalTimetable

from backlogctl.dags import tasks
from backlogctl.dags.policies import (
    AUDIT,
    TAGS,
    find_cron,
    find_pool,
    find_zone,
    read_outline,
)

DOC = """
### Audit every stream as its `audits` say, in its off-peak window

What a producer numbered and the topic does not have, what was committed and never handled, and
counts. Messages that are missing, or may be, are an event of the asset `backlog/STREAM`; the record
has what was found, and the alert BacklogAuditFound tells the next command. Nothing is changed.
"""
outline = read_outline()
zone = find_zone(outline)

with DAG(
    AUDIT,
    description="Looks for losses that offsets do not show.",
    schedule=CronDataIntervalTimetable(find_cron(outline, zone), timezone=zone),
    start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)),
    catchup=False,
    max_active_runs=1,
    # Each starts a Spark.
    max_active_tasks=2,
    default_args=dict(tasks.DAG_DEFAULTS),
    doc_md=DOC,
    tags=TAGS,
) as dag:
    tasks.audit.override(pool=find_pool(spark=True)).expand(work=tasks.list_audits())
