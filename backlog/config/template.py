"""The commented backlog.yaml that `backlogctl init` writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).with_name("template.yaml")


@dataclass(frozen=True, slots=True)
class TemplateParts:
    """Sections of the template; `stream` is what follows the group of the first stream."""

    head: str
    sources: str
    stream: str
    outboxes: str


def render_template() -> str:
    """A backlog.yaml to edit; it loads as it is with `SHOP_PASSWORD` set."""
    return _FILE.read_text(encoding="utf-8")


def split_template() -> TemplateParts:
    text = render_template()
    marks = ("clusters:\n", "sources:\n", "streams:\n", "    isolation:", "\n# Databases under")
    clusters, sources, streams, stream, outboxes = (text.index(mark) for mark in marks)
    return TemplateParts(
        text[:clusters], text[sources:streams], text[stream:outboxes], text[outboxes:]
    )
