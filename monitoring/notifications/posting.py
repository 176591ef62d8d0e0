"""One request to a hook: TLS is verified, no redirect is followed, proxies are the environment's.

A request has a thread of its own: an answer that comes drop by drop, or a name that is never
resolved, would hold up whoever waits beyond every limit of a socket.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http.client import HTTPException
from queue import Empty, SimpleQueue
from urllib.error import URLError
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from backlog.clock import utc_now
from backlog.config import mask_secrets
from backlogctl_delivery.visible import escape_text
from monitoring.notifications.messages import Message

_ANSWER_BYTES = 2000
_REASON_CHARACTERS = 200
# Answered with these, the same message may be taken later.
_PASSING = (408, 425, 429)
# What Slack says is one word of its list; other texts may hold anything.
_WORD = re.compile(r"[a-z_]{1,60}")


class Outcome(StrEnum):
    """What came of a request."""

    DELIVERED = "delivered"
    FAILED = "failed"  # no answer, or one that may be another later
    REFUSED = "refused"  # this message, or who sends it, is not taken


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it, and why it did not work; `retry_after` in seconds where it was said."""

    outcome: Outcome
    reason: str = ""
    retry_after: float = 0.0


class Line:
    """Sends to one hook, one request after another."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self._opener = _make_opener()
        self._thread: threading.Thread | None = None

    def post(self, message: Message) -> Answer:
        """Sends it, and waits for the answer as long as the limit allows."""
        nothing = Answer(Outcome.FAILED, f"no answer in {self._seconds:g} s")
        if self._thread is not None:
            self._thread.join(self._seconds)
            if self._thread.is_alive():
                return nothing  # the request before this one still hangs
        answers: SimpleQueue[Answer] = SimpleQueue()
        self._thread = threading.Thread(
            target=lambda: answers.put(self._post(message)),
            name="backlog-hook-request",
            daemon=True,
        )
        self._thread.start()
        try:
            return answers.get(timeout=self._seconds)
        except Empty:
            return nothing

    def _post(self, message: Message) -> Answer:
        """Never raises: what a library says of a request may hold its URL."""
        try:
            headers = dict(message.headers)
            request = Request(self._url, message.body, headers, method="POST")  # noqa: S310
            with self._opener.open(request, timeout=self._seconds) as response:
                body = response.read1(_ANSWER_BYTES)
                return _read_answer(response.status, response.headers, body)
        except Exception as error:  # noqa: BLE001
            return Answer(Outcome.FAILED, _explain(error, self._seconds))


def _make_opener() -> OpenerDirector:
    """Without the handlers that follow redirects, ask for passwords or open files."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(context=ssl.create_default_context()),
    ):
        opener.add_handler(handler)
    return opener


def _read_answer(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    if 200 <= status < 300:
        return Answer(Outcome.DELIVERED)
    said = _find_reason(body)
    reason = f"it answered {status}{f': {said}' if said else ''}"
    if status in _PASSING or status >= 500:
        return Answer(Outcome.FAILED, reason, _read_wait(headers.get("Retry-After", "")))
    if 300 <= status < 400:
        reason += ", and redirects are not followed"
    return Answer(Outcome.REFUSED, reason)


def _find_reason(body: bytes) -> str:
    """Slack's word, or PagerDuty's message with its errors; anything else is not repeated."""
    text = body.decode("utf-8", "replace").strip()
    if _WORD.fullmatch(text):
        return text
    try:
        document = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(document, dict):
        return ""
    errors = document.get("errors")
    parts = [document.get("message"), *(errors if isinstance(errors, list) else [])]
    found = ", ".join(part for part in parts if isinstance(part, str))
    return escape_text(mask_secrets(found))[:_REASON_CHARACTERS]


def _read_wait(text: str) -> float:
    """Seconds, or a date (RFC 9110, 10.2.3); 0 for anything else."""
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - utc_now()).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def _explain(error: BaseException, seconds: float) -> str:
    """Why there is no answer; nothing of the request is in it."""
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    match error:
        case TimeoutError():
            return f"no answer in {seconds:g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {escape_text(error.verify_message)}"
        case ssl.SSLError():
            return f"TLS failed: {escape_text(str(error.reason))}"
        case socket.gaierror():
            return "its name cannot be resolved"
        case ConnectionRefusedError():
            return "the connection was refused"
        case ConnectionError():
            return "the connection was closed without an answer"
        case HTTPException():
            return "it answered something that is not HTTP"
        case OSError() if str(error).startswith("Tunnel connection failed"):
            return "the proxy did not make a connection"
        case OSError() if error.strerror:
            return f"no connection: {error.strerror}"
    return f"a fault of the program: {type(error).__name__}"
