"""Panels of Grafana's, each with a title, a description, a unit and thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backlog.values import RecoveryState
from monitoring.verdicts import Verdict

SOURCE = {"type": "prometheus", "uid": "${DS}"}

Json = dict[str, Any]

GREEN, YELLOW, ORANGE, RED, PURPLE, GREY = "green", "yellow", "orange", "red", "purple", "#808080"
COLOURS = {
    Verdict.OK: GREEN,
    Verdict.LAGGING: "blue",
    Verdict.UNKNOWN: GREY,
    Verdict.WARN: YELLOW,
    Verdict.STALL: ORANGE,
    Verdict.STOP: ORANGE,
    Verdict.REWIND: PURPLE,
    Verdict.BEYOND_END: PURPLE,
    Verdict.LOSING: RED,
    Verdict.LOST: "dark-red",
}
# What needs a person most comes last.
STATES = {
    RecoveryState.VERIFIED: GREEN,
    RecoveryState.REJECTED: GREY,
    RecoveryState.CANCELLED: GREY,
    RecoveryState.PLANNED: "blue",
    RecoveryState.APPROVED: "blue",
    RecoveryState.RUNNING: "light-green",
    RecoveryState.PAUSED: ORANGE,
    RecoveryState.FAILED: RED,
}
ZERO_IS_GOOD = ((None, GREEN), (1, RED))
# Where there is no value Grafana takes the first colour.
TO_LOSS = ((None, GREEN), (0, RED), (6 * 3600, ORANGE), (24 * 3600, GREEN))
SAMPLE_AGE = ((None, GREEN), (60, ORANGE), (300, RED))
OVERDUE = ((None, GREEN), (1, ORANGE), (900, RED))
PLAIN = ((None, "blue"),)
Steps = Sequence[tuple[float | None, str]]

PLACE = "cluster, group, topic, stream"


def rank(metric: str, labels: str, by: str) -> str:
    """A verdict as its severity, so that a table can put the worst first."""
    parts = [
        f'{metric}{{{labels}, verdict="{verdict}"}} * {verdict.severity}' for verdict in Verdict
    ]
    return f"max by ({by}) ({' or '.join(parts)})"


def map_verdicts() -> list[Json]:
    return _map_values([(verdict.value, COLOURS[verdict]) for verdict in Verdict])


def rank_states(labels: str, by: str) -> str:
    """A recovery's state as its place in `STATES`."""
    parts = [
        f'backlog_recovery_state{{{labels}, state="{state}"}} * {number}'
        for number, state in enumerate(STATES)
    ]
    return f"max by ({by}) ({' or '.join(parts)})"


def map_states() -> list[Json]:
    return _map_values([(state.value, colour) for state, colour in STATES.items()])


def _map_values(words: Sequence[tuple[str, str]]) -> list[Json]:
    options = {
        str(number): {"color": colour, "index": number, "text": word}
        for number, (word, colour) in enumerate(words)
    }
    return [{"type": "value", "options": options}]


def target(expr: str, legend: str = "", *, instant: bool = False, table: bool = False) -> Json:
    """One query; `instant` asks for now only."""
    return {
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": expr,
        "format": "table" if table else "time_series",
        "instant": instant,
        "legendFormat": legend,
        "range": not instant,
        "refId": "A",
    }


def panel(
    kind: str,
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    unit: str,
    steps: Steps,
    size: tuple[int, int],
    options: Json,
    custom: Json | None = None,
    mappings: Sequence[Json] = (),
    overrides: Sequence[Json] = (),
    limits: Json | None = None,
    none: str = "none",
    transformations: Sequence[Json] = (),
) -> Json:
    """One panel; `size` is width (of 24) and height."""
    named = [{**one, "refId": chr(ord("A") + number)} for number, one in enumerate(targets)]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"w": size[0], "h": size[1]},
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                **(limits or {"min": 0}),
                "noValue": none,
                "color": {"mode": "palette-classic" if kind == "timeseries" else "thresholds"},
                "thresholds": steps_of(steps),
                "mappings": list(mappings),
                "custom": custom or {},
            },
            "overrides": list(overrides),
        },
        "options": options,
        "targets": named,
        "transformations": list(transformations),
    }


def stat(
    title: str,
    description: str,
    expr: str,
    steps: Steps = PLAIN,
    *,
    unit: str = "short",
    **more: Any,
) -> Json:
    """One number, its background says whether it is good."""
    options = {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    }
    return panel(
        "stat",
        title,
        description,
        [target(expr, instant=True)],
        unit=unit,
        steps=steps,
        size=(4, 4),
        options=options,
        **more,
    )


def bars(title: str, description: str, expr: str, legend: str, unit: str, steps: Steps) -> Json:
    options = {
        "displayMode": "basic",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
        "valueMode": "color",
    }
    return panel(
        "bargauge",
        title,
        description,
        [target(expr, legend, instant=True)],
        unit=unit,
        steps=steps,
        size=(12, 8),
        options=options,
        limits={"min": 0, "max": 1},
    )


def timeline(
    title: str,
    description: str,
    expr: str,
    legend: str,
    *,
    mappings: Sequence[Json] | None = None,
    size: tuple[int, int] = (24, 6),
) -> Json:
    """A word over time, one line for each series."""
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel(
        "state-timeline",
        title,
        description,
        [target(expr, legend)],
        unit="none",
        steps=PLAIN,
        size=size,
        options=options,
        custom={"fillOpacity": 80, "lineWidth": 0, "spanNulls": False},
        mappings=map_verdicts() if mappings is None else mappings,
        limits={},
    )


def graph(
    title: str,
    description: str,
    lines: Sequence[tuple[str, str]],
    unit: str = "short",
    steps: Steps = PLAIN,
    *,
    size: tuple[int, int] = (12, 9),
    lowest: bool = False,
) -> Json:
    """Lines over time, the worst first in the legend: the largest, or the lowest."""
    custom = {
        "drawStyle": "line",
        "fillOpacity": 8,
        "lineWidth": 1,
        "showPoints": "auto",
        "spanNulls": False,
        "thresholdsStyle": {"mode": "off" if steps == PLAIN else "line"},
    }
    options = {
        "legend": {
            "calcs": ["lastNotNull", "min" if lowest else "max"],
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "sortBy": "Last *",
            "sortDesc": not lowest,
        },
        "tooltip": {"mode": "multi", "sort": "asc" if lowest else "desc"},
    }
    return panel(
        "timeseries",
        title,
        description,
        [target(expr, legend) for expr, legend in lines],
        unit=unit,
        steps=steps,
        size=size,
        options=options,
        custom=custom,
    )


def override(column: str, **properties: Any) -> Json:
    """Of one column of a table; `custom__x` is `custom.x`."""
    listed = [{"id": name.replace("__", "."), "value": value} for name, value in properties.items()]
    return {"matcher": {"id": "byName", "options": column}, "properties": listed}


def steps_of(steps: Steps) -> Json:
    listed = [{"color": colour, "value": value} for value, colour in steps]
    return {"mode": "absolute", "steps": listed}


def fill(steps: Steps, **more: Any) -> dict[str, Any]:
    """Properties of a column whose cells are coloured; empty ones are not."""
    limits = steps_of([(None, "transparent"), *steps[1:]])
    return {"thresholds": limits, "custom__cellOptions": FILLED, **more}


def word(column: str, mappings: Sequence[Json]) -> Json:
    """A column of words, each with its colour."""
    return override(column, mappings=mappings, custom__cellOptions=FILLED)


FILLED = {"type": "color-background", "mode": "basic"}


def table(
    title: str,
    description: str,
    values: Sequence[tuple[str, str]],
    keys: Sequence[str],
    *,
    first: str,
    overrides: Sequence[Json],
    size: tuple[int, int] = (24, 10),
) -> Json:
    """A row for each combination of `keys`, a column for each value; the largest `first` first."""
    names = {f"Value #{chr(ord('A') + n)}": name for n, (name, _) in enumerate(values)}
    if len(values) == 1:
        names = {"Value": values[0][0]}
    order = [*list(names)[:1], *keys, *list(names)[1:]]
    shaped = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "includeByName": {},
                "indexByName": {name: number for number, name in enumerate(order)},
                "renameByName": names,
            },
        },
    ]
    return panel(
        "table",
        title,
        description,
        [target(expr, instant=True, table=True) for _, expr in values],
        unit="short",
        steps=PLAIN,
        size=size,
        options={
            "cellHeight": "sm",
            "footer": {"show": False},
            "showHeader": True,
            "sortBy": [{"desc": True, "displayName": first}],
        },
        custom={"align": "auto", "filterable": True},
        overrides=overrides,
        limits={},
        none="—",
        transformations=shaped,
    )
