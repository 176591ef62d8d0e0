"""A plan as Markdown, for the person who approves it."""

from __future__ import annotations

import re

from backlogctl.formats import format_moment
from backlogctl.replay.present.document import PlanView
from backlogctl_delivery.visible import escape_name, escape_text

_SHOWN = 4  # warnings
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


def describe_body(view: PlanView, page: str = "", ahead: str = "") -> str:
    """What a person decides on: what happens, what is stopped and given back, when, how sure.

    Figures and ranges are on the recovery's page: here they would push the buttons out of sight.

    Args:
        page: address of the recovery's page, for the link; "" for none.
        ahead: what retention takes next, "" for nothing.

    Raises:
        Refused: this program cannot read the plan.
    """
    recovery, (plan, told) = view.recovery, view.require()
    verdict = f"{told.verdict_words[:1].upper()}{told.verdict_words[1:]}"
    parts = [f"**{make_plain(verdict)}.** {make_plain(told.summary)}"]
    if page:
        parts[0] += f" [All figures and ranges]({page})"
    if ahead:
        parts.append(f"**Loss ahead:** {make_plain(ahead)}.")
    lines = [("", reason) for reason in told.reasons]
    lines += [(action.verb, "; ".join(action.sentences)) for action in told.actions]
    lines += [(fact.name, fact.text) for fact in told.public_facts if fact.decides]
    if told.other_groups or told.others_unknown:
        lines.append(("other groups on the topic", told.say_others()))
    if plan.origin is not None and plan.origin.note:
        lines.append(("note", plan.origin.note))
    parts.append("\n".join(f"- {_draw_line(*line)}" for line in lines))
    if told.warnings:
        parts.append("**To know before**")
        parts.append("\n".join(f"- {make_plain(text)}" for text in told.warnings[:_SHOWN]))
        if more := len(told.warnings) - _SHOWN:
            parts += [f"and {more} more on the page"] if more > 0 else []
    planner = plan.planned_by
    who = (
        f"Group {_code(recovery.group)}. Planned by {_code(planner.kind + ':' + planner.user)} at "
    )
    who += f"{format_moment(plan.planned_at)}. Approved by: {_WHO[plan.approval]}."
    who += f" The answer is for plan {_code(recovery.plan_hash[:12])} and no other."
    parts.append(who)
    return "\n\n".join(part for part in parts if part)


def _draw_line(name: str, text: str) -> str:
    """`**Stops** the consumers`."""
    return f"**{name[:1].upper()}{name[1:]}** {make_plain(text)}" if name else make_plain(text)


def make_plain(text: str) -> str:
    """No markup and no links of somebody else's: names and notes are text. What stands between two
    backticks is code, where nothing is markup."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # one of them is alone
        return _escape("`".join(parts))
    return "".join(
        _code(part) if number % 2 else _escape(part) for number, part in enumerate(parts)
    )


def _escape(text: str) -> str:
    text = _MARKUP.sub(r"\\\g<0>", escape_text(text))
    return _LINK.sub(_NO_LINK, _LINE_MARK.sub(r"\1\\\2", text))


def _code(text: str) -> str:
    # A line break would end it.
    return "`" + (escape_name(text).replace("`", "'") or "—") + "`"
