"""Put back at night what was lost: one DAG for each time zone in use."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, CronDataIntervalTimetable, task_group

from backlogctl_airflow import tasks
from backlogctl_airflow.links import add_links
from backlogctl_airflow.outline import find_cron, list_zones, name_nightly, read_outline
from backlogctl_airflow.starting import AskForApproval

DOC = """
### Rebuild the open gaps of every stream, and put the messages back in its off-peak window

What one night does not finish, the next one goes on with. Exact plans of streams with
`approval: auto` go on by themselves; any other plan waits in a run of `recover_backlog`.
One stream's failure leaves the others alone.
"""
outline = read_outline()


def make_nightly(zone: str, name: str) -> DAG:
    """The DAG of the streams whose window is in this time zone."""
    with DAG(
        name,
        schedule=CronDataIntervalTimetable(find_cron(outline, zone), timezone=zone),
        start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)),
        catchup=False,
        max_active_runs=1,
        doc_md=DOC,
        tags=["backlogctl"],
    ) as dag:

        @task_group(group_id="stream")
        def repair(stream: str) -> None:
            """One stream's night."""
            work = tasks.plan_night(stream)
            tasks.put_back(work)
            AskForApproval(task_id="ask", work=work, retries=2, retry_delay=timedelta(seconds=30))

        repair.expand(stream=tasks.list_night_streams(zone))
        add_links(dag)
    return dag


zones = list_zones(outline)
for zone in zones:
    name = name_nightly(zone, zones)
    globals()[name] = make_nightly(zone, name)
