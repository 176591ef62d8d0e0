"""What is sent: the status's own sentence and next command, as each kind of hook takes them.

Slack: incoming webhooks, https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks,
and how text is escaped, https://docs.slack.dev/messaging/formatting-message-text. PagerDuty: Events
API v2, https://developer.pagerduty.com/docs/send-alert-event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backlog.clock import format_time
from backlog.config import Hook
from backlog.hashing import hash_value
from backlogctl_delivery.visible import escape_text
from monitoring.notifications.mailbox import Notice
from monitoring.notifications.settling import Seen
from monitoring.verdicts import Verdict

SCHEMA_VERSION = 1
SUMMARY_CHARACTERS = 1024  # PagerDuty's `payload.summary`
SLACK_CHARACTERS = 3000  # a section's text
_PART_CHARACTERS = 500  # of one part of it, which escaped is up to five times as long
_DEDUP_NAME = 150  # of PagerDuty's 255, so that a hash has its place

_SEVERITIES: Mapping[Verdict, str] = {
    Verdict.LAGGING: "info",
    Verdict.UNKNOWN: "warning",
    Verdict.WARN: "warning",
    Verdict.STALL: "error",
    Verdict.STOP: "error",
    Verdict.REWIND: "error",
    Verdict.BEYOND_END: "error",
    Verdict.LOSING: "critical",
    Verdict.LOST: "critical",
}
# What has a field of its own in PagerDuty's event, or says nothing there.
_ELSEWHERE = ("schema_version", "event", "sentence", "resolved", "page")
_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, slots=True)
class Told:
    """What is known beside a notice.

    Attributes:
        commands: what to type next, the best first.
        page: the stream's page; "" where nobody said how it is reached.
        home: the first page; "" likewise.
    """

    commands: tuple[str, ...] = ()
    page: str = ""
    home: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A request to a hook; its repr shows no secret."""

    body: bytes
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Message({len(self.body)} bytes)"


def write_message(hook: Hook, notice: Notice, told: Told) -> Message:
    """The message that tells a hook of a change."""
    if hook.slack is not None:
        return _pack(hook, write_slack(notice, told))
    if hook.pagerduty is not None:
        return _pack(hook, write_pagerduty(hook.pagerduty.get_secret_value(), notice, told))
    return _pack(hook, write_json(notice, told))


def write_tests(hook: Hook, name: str) -> tuple[Message, ...]:
    """The messages of a test: of PagerDuty an alert that is resolved at once."""
    text = f"backlogctl: this is a test of the hook {name}; nothing is wrong"
    if hook.slack is not None:
        return (_pack(hook, _write_slack_text(text)),)
    if hook.pagerduty is None:
        document = {"schema_version": SCHEMA_VERSION, "event": "test", "hook": name, "text": text}
        return (_pack(hook, document),)
    key = {
        "routing_key": hook.pagerduty.get_secret_value(),
        "dedup_key": f"backlogctl-test-{_hash(name)}",
    }
    payload = {"summary": text, "source": "backlogctl", "severity": "info"}
    return (
        _pack(hook, {**key, "event_action": "trigger", "payload": payload}),
        _pack(hook, {**key, "event_action": "resolve"}),
    )


def write_json(notice: Notice, told: Told) -> dict[str, Any]:
    """The document of a webhook. `before` is None where it is the first that is told."""
    seen, status = notice.seen, notice.seen.status
    figures = ("lag", "lag_seconds", "lost", "seconds_to_drain", "seconds_to_loss", "expected_loss")
    return {
        "schema_version": SCHEMA_VERSION,
        "event": "verdict",
        "stream": seen.stream,
        "cluster": seen.cluster,
        "topic": seen.topic,
        "group": seen.group,
        "at": format_time(seen.at),
        "before": None if notice.before is None else str(notice.before),
        "verdict": str(seen.verdict),
        "course": str(seen.verdict if status is None else status.course),
        "resolved": notice.is_resolved,
        "sentence": escape_text(seen.sentence),
        "next_commands": [escape_text(command) for command in told.commands],
        "page": told.page or None,
        **{name: None if status is None else getattr(status, name) for name in figures},
    }


def write_slack(notice: Notice, told: Told) -> dict[str, Any]:
    """A message of an incoming webhook: the change, the sentence, what to type next."""
    seen = notice.seen
    after = _bold(_name_verdict(seen))
    is_same = notice.before in (None, seen.verdict)
    change = after if is_same else f"{_say(notice.before)} → {after}"
    lines = [f"{_bold(seen.stream)}: {change}", _escape(seen.sentence)]
    lines += [f"next: `{_escape(command)}`" for command in told.commands]
    if told.page:
        lines.append(f"<{told.page.translate(_SLACK_ESCAPES)}|page>")
    return _write_slack_text(*lines)


def write_pagerduty(routing_key: str, notice: Notice, told: Told) -> dict[str, Any]:
    """An alert event: all of a stream's have one `dedup_key`, and recovery resolves it."""
    seen = notice.seen
    event = {"routing_key": routing_key, "dedup_key": make_dedup_key(seen)}
    if notice.is_resolved:
        return {**event, "event_action": "resolve"}
    document = write_json(notice, told)
    return {
        **event,
        "event_action": "trigger",
        "payload": {
            "summary": _clip(escape_text(seen.sentence), SUMMARY_CHARACTERS),
            "source": f"{seen.cluster}/{seen.topic}",
            "severity": _SEVERITIES[seen.verdict],
            "timestamp": format_time(seen.at),
            "component": seen.topic,
            "group": escape_text(seen.group),
            "class": str(seen.verdict),
            "custom_details": {name: document[name] for name in document if name not in _ELSEWHERE},
        },
        "client": "backlogctl",
        **({"client_url": told.home} if told.home else {}),
        "links": [{"href": told.page, "text": "page"}] if told.page else [],
    }


def make_dedup_key(seen: Seen) -> str:
    """The same for a stream as long as it reads the same topic for the same group."""
    place = _hash(seen.cluster, seen.topic, seen.group, seen.stream)
    return f"backlogctl-{seen.stream[:_DEDUP_NAME]}-{place}"


def _write_slack_text(*lines: str) -> dict[str, Any]:
    """In a block, since only there `verbatim` keeps Slack from making links of names; what shows
    no blocks shows `text`. Lines for which there is no room are left out."""
    text = ""
    for line in lines:
        longer = f"{text}\n{line}" if text else line
        text = longer if len(longer) <= SLACK_CHARACTERS else text
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    return {"text": text, "blocks": [section], "unfurl_links": False, "unfurl_media": False}


def _name_verdict(seen: Seen) -> str:
    beside = "" if seen.beside is Verdict.OK else f", {_say(seen.beside)}"
    return f"{_say(seen.verdict)}{beside}"


def _say(verdict: Verdict | None) -> str:
    return str(verdict).replace("_", " ")


def _bold(text: str) -> str:
    return f"*{_escape(text)}*"


def _escape(text: str) -> str:
    # Cut before it is escaped: half an entity would be shown as it is.
    return _clip(escape_text(text), _PART_CHARACTERS).translate(_SLACK_ESCAPES)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _hash(*parts: str) -> str:
    return hash_value(parts)[:16]


def _pack(hook: Hook, document: Mapping[str, Any]) -> Message:
    headers = {"Content-Type": "application/json", "User-Agent": "backlogctl"}
    if hook.token is not None:
        headers["Authorization"] = f"Bearer {hook.token.get_secret_value()}"
    return Message(json.dumps(document).encode(), headers)
