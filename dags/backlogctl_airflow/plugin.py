"""What Airflow shows of us: an entry of the navigation, and a tab of each run."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin

from backlogctl_airflow.page.mounting import LazyPage

# Seen in the address: /backlogctl/ is the page itself, /plugin/backlogctl the page in Airflow.
NAME = "backlogctl"
# Seen on light, dark and the blue of what is chosen; a part of the answer, so no file is asked for.
_ICON = "data:image/svg+xml," + quote(
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'>"
    "<path d='M1 1h6v1.4H1zM1 3.3h4.4v1.4H1zM1 5.6h2.6V7H1z' fill='#e8792b'/></svg>"
)
FASTAPI_APPS: list[Any] = [{"name": NAME, "app": LazyPage(), "url_prefix": f"/{NAME}"}]
# Relative addresses: Airflow may be served under a path.
EXTERNAL_VIEWS: list[Any] = [
    {
        "name": "Backlogs",
        "href": f"{NAME}/",
        "destination": "nav",
        "url_route": NAME,
        "nav_top_level": True,
        "icon": _ICON,
    },
    {
        "name": "Recovery",
        "href": f"{NAME}/runs/{{DAG_ID}}/{{RUN_ID}}",
        "destination": "dag_run",
        "url_route": f"{NAME}-recovery",
        "icon": _ICON,
    },
    {
        "name": "Report",
        "href": f"{NAME}/run-reports/{{DAG_ID}}/{{RUN_ID}}",
        "destination": "dag_run",
        "url_route": f"{NAME}-report",
        "icon": _ICON,
    },
]


class BacklogPlugin(AirflowPlugin):
    """Found by its entry point. Every process of Airflow imports it, so it imports little."""

    name = NAME
    fastapi_apps = FASTAPI_APPS
    external_views = EXTERNAL_VIEWS
