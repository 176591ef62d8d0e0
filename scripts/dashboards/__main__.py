"""Writes monitoring/dashboards/*.json."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.dashboards.delivery import delivery
from scripts.dashboards.documents import dashboard
from scripts.dashboards.overview import overview
from scripts.dashboards.recovery import recovery
from scripts.dashboards.stream import stream

TARGET = Path(__file__).resolve().parents[2] / "monitoring" / "dashboards"


def write_dashboards() -> dict[str, str]:
    made = [dashboard(parts) for parts in (overview(), stream(), recovery(), delivery())]
    return {
        f"{one['uid'].removeprefix('backlog-')}.json": json.dumps(one, indent=2) + "\n"
        for one in made
    }


if __name__ == "__main__":
    for name, text in write_dashboards().items():
        (TARGET / name).write_text(text)
