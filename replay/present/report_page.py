"""The report in a few lines, for a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from backlogctl.errors import BacklogError, UsageError
from backlogctl.formats import format_duration, format_moment
from backlogctl.replay.present.figures import list_lag_figures, list_work_figures, load_templates
from backlogctl.replay.present.layout import Facts, Text
from backlogctl.replay.present.terminal import draw_title
from backlogctl.replay.present.tones import find_tone
from backlogctl_delivery.visible import escape_text


def render_summary(document: Mapping[str, Any]) -> RenderableType:
    """What it is about, how it stands, what was lost, verified, not explained, and comes next."""
    grid = Facts()

    def add(name: str, told: str, style: str = "") -> None:
        grid.add(name, Text(told, style=style))

    standing, people = document["standing"], document["people"]
    add("", standing["headline"], "bold")
    add("", standing["sentence"])
    add("when", f"{format_moment(document['from'])} to {format_moment(document['to'])}")
    add("lost", document["losses"]["sentence"])
    add("planned by", f"{people['planned_by']}, {format_moment(people['planned_at'])}")
    if people["approved_by"]:
        told = f"{people['approved_by']} ({people['approved_identity']})"
        add("approved by", f"{told}, {format_moment(people['approved_at'])}")
    told = ", ".join(f"{item['value']} {item['told']}" for item in document["figures"])
    add("figures", told)
    verification = document["verification"]
    style = {"passed": "green", "failed": "bold red"}.get(verification["result"], "yellow")
    add("verification", verification["result"], style)
    rest = document["unexplained"]
    items = [f"{item['value']:,} {item['told']}" for item in rest["items"]]
    add("unexplained", f"{rest['told']} {'; '.join([*items, *rest['reasons']])}".strip())
    add("loss ahead", document["ahead"]["told"])
    record = document["record"]
    if record["intact"] and record["plan_holds"]:
        add("record", f"{record['events']:,} events, hash chain verified", "green")
    else:
        add("record", record["problem"] or "the plan was changed after it was hashed", "bold red")
    named = (document[name] for name in ("id", "kind", "stream", "state", "verdict"))
    return Group(draw_title(*named), grid)


def write_whole(path: Path, text: str) -> None:
    """Puts a file in the place of one that may be there, at once; a link keeps what it is.

    Raises:
        UsageError: it is a directory or a device, or its directory is not there.
        BacklogError: it could not be written; what was there before is as it was.
    """
    check_writable(path)
    target = path.resolve()
    # With the rights that any new file has; in the same directory, so that it can be renamed.
    passing = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        passing.unlink(missing_ok=True)
        with passing.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        passing.replace(target)
    except OSError as error:
        with suppress(OSError):
            passing.unlink()
        raise BacklogError(
            f"cannot be written: {error.strerror or error}",
            subject=str(path),
            hint="name another file; `-` is stdout",
        ) from error


def check_writable(path: Path) -> None:
    """Refuses what no file can take the place of.

    Raises:
        UsageError: it is a directory or a device, or its directory is not there.
    """
    hint = "name a file; `-` is stdout"
    if path.is_dir():
        raise UsageError("it is a directory", subject=str(path), hint=hint)
    if path.exists() and not path.is_file():
        raise UsageError("it is not a regular file", subject=str(path), hint=hint)
    if not path.resolve().parent.is_dir():
        raise UsageError("its directory is not there", subject=str(path), hint=hint)


# The report as one HTML file that needs nothing else: style and figures are in it, no script.

_PARTITIONS_SHOWN = 64
_GAPS_SHOWN = 200
_CODE = re.compile(r"`([^`]+)`")


def render_page(document: Mapping[str, Any]) -> str:
    """The whole page; every text in it is escaped but the figures, which are ours."""
    from markupsafe import Markup, escape

    def set_code(text: str) -> Markup:
        return Markup(_CODE.sub(r"<code>\1</code>", str(escape(escape_text(text)))))

    environment = load_templates("backlogctl.replay.present")
    environment.filters |= {
        "count": _count,
        "moment": _format_short,
        "exact_moment": format_moment,
        "duration": _format_took,
        "code": set_code,
        "tone": find_tone,
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
