"""A dashboard's document: variables, links, and panels laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from scripts.dashboards.panels import SOURCE, Json

DOCS = "https://backlog.example.com/docs/alerts.md"
SCHEMA = 39  # Grafana 10.4 and 11
WIDTH = 24


def variable(name: str, label: str, metric: str, *, every: bool = True) -> Json:
    """A choice of a label's values; `every` adds All."""
    query = f"label_values({metric}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor"},
        "refresh": 2,
        "sort": 1,
        "multi": every,
        "includeAll": every,
        **({"allValue": ".*"} if every else {}),
        "current": {},
        "hide": 0,
        "options": [],
        "regex": "",
        "skipUrlSync": False,
    }


@dataclass(frozen=True, slots=True)
class Parts:
    """What makes a dashboard; its `uid` is in its address."""

    uid: str
    title: str
    description: str
    variables: Sequence[Json]
    panels: Sequence[Json]


def dashboard(parts: Parts) -> Json:
    """The document; panels flow from left to right, a line is as high as its highest panel."""
    numbers = count(1)
    x = y = height = 0
    placed = []
    for one in parts.panels:
        width, own = one["gridPos"]["w"], one["gridPos"]["h"]
        if x + width > WIDTH:
            x, y, height = 0, y + height, 0
        placed.append(
            {"id": next(numbers), **one, "gridPos": {"x": x, "y": y, "w": width, "h": own}}
        )
        x, height = x + width, max(height, own)
    source = {
        "type": "datasource",
        "name": "DS",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
        "hide": 0,
        "options": [],
        "regex": "",
        "skipUrlSync": False,
    }
    links = [
        {
            "type": "dashboards",
            "title": "backlogctl",
            "tags": ["backlogctl"],
            "asDropdown": True,
            "includeVars": True,
            "keepTime": True,
            "targetBlank": False,
            "icon": "external link",
        },
        {
            "type": "link",
            "title": "What the alerts mean",
            "url": DOCS,
            "tags": [],
            "targetBlank": True,
            "icon": "doc",
        },
    ]
    return {
        "uid": parts.uid,
        "title": parts.title,
        "description": parts.description,
        "tags": ["backlogctl"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "links": links,
        "annotations": {"list": []},
        "templating": {"list": [source, *parts.variables]},
        "panels": placed,
    }
