"""Sends one message to a hook: JSON by POST to a webhook, or text by apprise to a service."""

from __future__ import annotations

import json
import logging
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from backlogctl.config import Hook, mask_secrets
from backlogctl.monitoring.notifications.changes import Change
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.values import to_document, to_plain
from backlogctl_delivery.visible import escape_text

SCHEMA_VERSION = 1
_FIGURES = (
    *("lag", "lag_at_least", "lag_seconds", "lost"),
    *("seconds_to_drain", "seconds_to_loss", "expected_loss", "urgency"),
)
_REASON_CHARACTERS = 200
# Answered with these, the same message may be taken later.
_PASSING = (408, 425, 429)
# apprise's: services show them as colours, PagerDuty as severities and, by `action=map`, as an end.
_TYPES: Mapping[Verdict, str] = {
    Verdict.LAGGING: "info",
    Verdict.UNKNOWN: "warning",
    Verdict.WARN: "warning",
}


class DeliveryStatus(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"  # no answer, or one that may be another later
    REFUSED = "refused"  # this message, or who sends it, is not taken


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What came of it, and why it did not work; `retry_after` in seconds where it was said."""

    outcome: DeliveryStatus
    reason: str = ""
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What is known beside a change.

    Attributes:
        commands: what to type next, the best first.
        page: the stream's page; "" where nobody said how it is reached.
    """

    commands: tuple[str, ...] = ()
    page: str = ""


@dataclass(frozen=True, slots=True)
class Notification:
    """One message, as each kind of hook takes it.

    Attributes:
        title: the same for all messages of a stream: what alerts of PagerDuty are matched by.
        kind: apprise's: info, success, warning, failure.
    """

    document: Mapping[str, Any]
    title: str
    body: str
    kind: str

    @classmethod
    def of_change(cls, change: Change, context: MessageContext) -> Notification:
        """The status's own sentence and next commands."""
        look = change.look
        beside = "" if look.beside is Verdict.OK else f", {_name(look.beside)}"
        verdict = f"{_name(look.verdict)}{beside}"
        is_same = change.before in (None, look.verdict)
        lines = [
            verdict if is_same else f"{_name(change.before)} → {verdict}",
            escape_text(look.sentence),
            *(f"next: {escape_text(command)}" for command in context.commands),
        ]
        title = f"{look.stream} ({look.topic} for {look.group} on {look.cluster})"
        return cls(
            _write_document(change, context),
            escape_text(title),
            "\n".join([*lines, *([context.page] if context.page else [])]),
            "success" if change.is_resolved else _TYPES.get(look.verdict, "failure"),
        )

    @classmethod
    def of_test(cls, hook: str) -> Notification:
        """A test: nothing is wrong."""
        text = f"this is a test of the hook {hook}; nothing is wrong"
        document = {"event": "test", "hook": hook, "text": f"backlogctl: {text}"}
        return cls({"schema_version": SCHEMA_VERSION, **document}, "backlogctl", text, "success")


class WebhookClient:
    """Sends to one hook, one message after another."""

    def __init__(self, hook: Hook) -> None:
        self._seconds = hook.timeout.total_seconds()
        self._send = _make_apprise(hook) if hook.apprise is not None else _make_webhook(hook)

    def post(self, message: Notification) -> DeliveryResult:
        """Never raises: what a library says of a request may hold its URL."""
        try:
            return self._send(message)
        except Exception as error:  # noqa: BLE001
            return DeliveryResult(DeliveryStatus.FAILED, _explain(error, self._seconds))


def _make_webhook(hook: Hook) -> Callable[[Notification], DeliveryResult]:
    """TLS is verified, no redirect is followed, proxies are the environment's."""
    opener = OpenerDirector()
    https = HTTPSHandler(context=ssl.create_default_context())
    for handler in (ProxyHandler(), HTTPHandler(), https):
        opener.add_handler(handler)
    headers = {"Content-Type": "application/json", "User-Agent": "backlogctl"}
    if hook.token is not None:
        headers["Authorization"] = f"Bearer {hook.token.get_secret_value()}"
    url, seconds = hook.reveal_url(), hook.timeout.total_seconds()

    def send(message: Notification) -> DeliveryResult:
        body = json.dumps(message.document).encode()
        request = Request(url, body, headers, method="POST")  # noqa: S310
        with opener.open(request, timeout=seconds) as response:
            return _read_answer(response.status, response.headers.get("Retry-After", ""))

    return send


def _make_apprise(hook: Hook) -> Callable[[Notification], DeliveryResult]:
    url, seconds = hook.reveal_url(), hook.timeout.total_seconds()

    def send(message: Notification) -> DeliveryResult:
        import apprise  # takes a second

        # Its own words go into reasons only: they may hold parts of the URL.
        logger = logging.getLogger("apprise")
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        service = apprise.Apprise()
        if not service.add(url):
            return DeliveryResult(DeliveryStatus.REFUSED, "apprise does not take this URL")
        words: list[str] = []
        taken = service.notify(
            message.body,
            message.title,
            apprise.NotifyType(message.kind),
            body_format=apprise.NotifyFormat.TEXT,
            timeout=seconds,
            log_callback=lambda entry, _: words.append(entry.message),
            log_level=logging.WARNING,
        )
        if taken:
            return DeliveryResult(DeliveryStatus.DELIVERED)
        reason = mask_secrets(" ".join(words))
        for secret in hook.reveal_secrets():
            reason = reason.replace(secret, "***")
        return DeliveryResult(
            DeliveryStatus.FAILED, escape_text(reason)[:_REASON_CHARACTERS] or "no reason given"
        )

    return send


def _write_document(change: Change, context: MessageContext) -> dict[str, Any]:
    """The document of a webhook. `before` is None where it is the first that is told."""
    look, status = change.look, change.look.status
    return {
        "schema_version": SCHEMA_VERSION,
        "event": "verdict",
        **to_document(look, "stream", "cluster", "topic", "group", "at", "verdict"),
        "before": to_plain(change.before),
        "course": str(look.verdict if status is None else status.course),
        "resolved": change.is_resolved,
        "sentence": escape_text(look.sentence),
        "next_commands": [escape_text(command) for command in context.commands],
        "page": context.page or None,
        **{name: None if status is None else getattr(status, name) for name in _FIGURES},
    }


def _name(verdict: Verdict | None) -> str:
    return str(verdict).replace("_", " ")


def _read_answer(status: int, retry_after: str) -> DeliveryResult:
    reason = f"it answered {status}"
    if 200 <= status < 300:
        return DeliveryResult(DeliveryStatus.DELIVERED)
    if status in _PASSING or status >= 500:
        wait = float(retry_after) if re.fullmatch(r"[0-9]{1,9}", retry_after) else 0.0
        return DeliveryResult(DeliveryStatus.FAILED, reason, wait)
    moved = ", and redirects are not followed" if 300 <= status < 400 else ""
    return DeliveryResult(DeliveryStatus.REFUSED, f"{reason}{moved}")


def _explain(error: BaseException, seconds: float) -> str:
    """Why there is no answer; nothing of the request is in it."""
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    match error:
        case TimeoutError():
            return f"no answer in {seconds:g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {escape_text(error.verify_message)}"
        case OSError() if str(error).startswith("Tunnel connection failed"):
            return "the proxy did not make a connection"
        case OSError() if error.strerror:
            return f"no connection: {escape_text(error.strerror)}"
    return f"no connection: {type(error).__name__}"
