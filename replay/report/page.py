"""The report as one HTML file that needs nothing else: style and figures are in it, no script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from backlog.numbers import format_duration, format_moment
from backlogctl_delivery.visible import escape_text, show_value
from replay.telling.figures import list_lag_figures, list_work_figures

_PARTITIONS_SHOWN = 64
_GAPS_SHOWN = 200
_CODE = re.compile(r"`([^`]+)`")


def render_page(document: Mapping[str, Any]) -> str:
    """The whole page; every text in it is escaped but the figures, which are ours."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def set_code(text: str) -> Markup:
        return Markup(_CODE.sub(r"<code>\1</code>", str(escape(escape_text(text)))))

    environment = Environment(
        loader=PackageLoader("replay.report"),
        autoescape=True,
        finalize=show_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": _count,
        "moment": _format_short,
        "exact_moment": format_moment,
        "duration": _format_took,
        "code": set_code,
        "words": lambda text: str(text).replace("_", " "),
    }
    figures = {
        "lag": tuple(list_lag_figures(document)),
        "work": tuple(list_work_figures(document)),
    }
    style = Markup(environment.get_template("report.css").render())
    page: str = environment.get_template("report.html").render(
        report=document,
        figures=figures,
        style=style,
        shown=_PARTITIONS_SHOWN,
        gaps_shown=_GAPS_SHOWN,
    )
    return page


def _count(value: Any) -> str:
    """Every digit: this is what somebody will hold against another count."""
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _format_took(seconds: float | None) -> str:
    """Rounded to nothing is not nothing."""
    return format_duration(None if seconds is None else max(seconds, 0.01))


def _format_short(text: str) -> str:
    """`21 Nov 10:31:07`, in UTC."""
    return f"{datetime.fromisoformat(text).astimezone(UTC):%d %b %H:%M:%S}"
