"""A plan as Markdown, for the person who approves it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backlog.numbers import format_moment
from backlog.values import Recovery
from replay.recovery.plan import Plan
from replay.telling.value import Telling

_SHOWN = 12
_MARKUP = re.compile(r"[\\`*_\[\]<>#|~&]")
# What begins a list or a rule where it begins a line.
_LINE_MARK = re.compile(r"^(\d*)([-+=]|[.)](?=\s|$))")
# Addresses become links by themselves, escaped or not, unless an unseen character parts them.
_LINK = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", re.IGNORECASE)
_NO_LINK = "\u2060"
_WHO = {
    "named": "anybody who may answer here",
    "second_person": "another person than the one who asked for it",
    "auto": "a person, because such a plan is not approved by itself",
}


def describe_body(recovery: Recovery, plan: Plan, told: Telling, page: str = "") -> str:
    """The plan for people: figures, ranges, what is stopped, created and deleted, how long.

    Args:
        page: address of the recovery's page, for the link; "" for none.
    """
    topic, group = _code(recovery.topic), _code(recovery.group)
    verdict = f"{told.verdict_words[:1].upper()}{told.verdict_words[1:]}"
    parts = [f"**{_plain(verdict)}.** {_plain(told.summary)}"]
    parts.append(f"Topic {topic}, group {group}.")
    if told.reasons:
        parts.append(_list(told.reasons))
    if told.counts:
        parts.append(_table(("", "count"), [(count.words, str(count)) for count in told.counts]))
    if told.facts:
        parts.append(_table(("", ""), [(fact.name, fact.text) for fact in told.public_facts]))
    for table in told.tables:
        if table.rows:
            rows, rest = table.top(_SHOWN)
            parts.append(f"**{_plain(table.title)}**")
            parts.append(_table(table.columns, [row.cells for row in rows]))
            parts += [rest] if rest else []
    for action in told.actions:
        parts.append(f"**{_plain(action.verb.capitalize())}**")
        parts.append(_list(action.sentences))
    if told.other_groups:
        names = ", ".join(_code(name) for name in told.other_groups)
        parts.append(f"**Other groups on the topic:** {names}")
    if told.warnings:
        parts.append("**To know before**")
        parts.append(_list(told.warnings))
    if plan.origin is not None and plan.origin.note:
        parts.append(f"**Note:** {_plain(plan.origin.note)}")
    planner = plan.planned_by
    who = f"Planned by {_code(planner.kind + ':' + planner.user)} at "
    who += f"{format_moment(plan.planned_at)}. Approved by: {_WHO[plan.approval]}."
    who += f" The answer is for plan {_code(recovery.plan_hash[:12])} and no other."
    parts.append(who)
    if page:
        parts.append(f"[The recovery's page]({page})")
    return "\n\n".join(parts)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [tuple(_plain(cell) for cell in line) for line in (head, *rows)]
    lines.insert(1, tuple("---" for _ in head))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(item)}" for item in items)


def _plain(text: str) -> str:
    """No markup and no links of somebody else's: names and notes are text."""
    text = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    return _LINK.sub(_NO_LINK, _LINE_MARK.sub(r"\1\\\2", text))


def _code(text: str) -> str:
    # A line break would end it.
    return "`" + (" ".join(text.split()).replace("`", "'") or "—") + "`"
