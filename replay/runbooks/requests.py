"""What was asked for in the form of a recovery."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from backlog.clock import parse_duration, parse_time
from backlog.config import Config, Stream
from backlog.errors import UsageError
from fanout.layout import MAX_FACTOR
from replay.expand_plans import ORDERS, ExpandOptions
from replay.kinds import EXPAND, REBUILD
from replay.plans import PlanOptions

AUTO = "auto"
ACTIONS = (AUTO, EXPAND, REBUILD)
BY_STREAM = "as configured"
MAX_TEXT = 500
MAX_WAIT = timedelta(days=365)
# Control characters but those of several lines, and halves of surrogate pairs.
_UNSPEAKABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_RECOVERY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """The form, checked.

    Attributes:
        rate: messages one consumer handles a second; None measures it.
        recovery: a plan that exists already, "" to make one.
        answer_within: how long the approval is waited for; None takes the configuration's.
    """

    stream: str
    action: str = AUTO
    since: datetime | None = None
    until: datetime | None = None
    order: str | None = None
    factor: int | None = None
    rate: float | None = None
    note: str = ""
    recovery: str = ""
    answer_within: timedelta | None = None

    def rebuild_options(self, origin: Mapping[str, Any]) -> PlanOptions:
        """For `plan_rebuild`."""
        return PlanOptions(since=self.since, until=self.until, origin=origin)

    def expand_options(self, origin: Mapping[str, Any]) -> ExpandOptions:
        """For `plan_expand`."""
        return ExpandOptions(rate=self.rate, factor=self.factor, order=self.order, origin=origin)


def read_request(config: Config, form: Mapping[str, Any]) -> RecoveryRequest:
    """Checks a form: what an API sends may be anything.

    Raises:
        UsageError: names the field; an unknown stream names the nearest.
    """
    stream = config.stream(_read_text(form, "stream"))
    action = _read_text(form, "action") or AUTO
    if action not in ACTIONS:
        raise UsageError(
            f"{action!r} is not an action", subject="action", hint=f"one of {', '.join(ACTIONS)}"
        )
    order = _read_text(form, "order") or BY_STREAM
    if order not in (BY_STREAM, *ORDERS):
        raise UsageError(
            f"{order!r} is not an order", subject="order", hint=f"one of {', '.join(ORDERS)}"
        )
    since, until = (_read_moment(config, stream, form, name) for name in ("since", "until"))
    if since and until and since >= until:
        raise UsageError("it is not before `until`", subject="since")
    return RecoveryRequest(
        stream=stream.name,
        action=action,
        since=since,
        until=until,
        order=None if order == BY_STREAM else order,
        factor=_read_factor(form.get("factor")),
        rate=_read_rate(form.get("rate")),
        # It is kept in the plan and shown to whoever looks.
        note=config.mask_secrets(_read_text(form, "note")),
        recovery=_read_recovery(form),
        answer_within=_read_wait(form),
    )


def _read_text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError("it must be text", subject=name)
    text = value.strip()
    if len(text) > MAX_TEXT:
        raise UsageError(f"it is longer than {MAX_TEXT} characters", subject=name)
    if _UNSPEAKABLE.search(text):
        raise UsageError("it holds characters that are not text", subject=name)
    return text


def _read_recovery(form: Mapping[str, Any]) -> str:
    text = _read_text(form, "recovery")
    if text and not _RECOVERY_ID.fullmatch(text):
        raise UsageError(
            f"{text!r} is not the id of a recovery",
            subject="recovery",
            hint="such as r-20261121-0007; leave it empty to make a plan",
        )
    return text


def _read_moment(
    config: Config, stream: Stream, form: Mapping[str, Any], name: str
) -> datetime | None:
    text = _read_text(form, name)
    if not text:
        return None
    zone = "UTC" if stream.source is None else config.sources[stream.source.database].timezone
    try:
        return parse_time(text, ZoneInfo(zone))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is not a time in ISO 8601",
            subject=name,
            hint=f"such as 2026-11-21T08:00 ({zone}) or 2026-11-21T08:00:00Z",
        ) from None


def _read_factor(value: object) -> int | None:
    if value is None or value == "":
        return None
    number = _read_number(value)
    # JSON has one kind of number: 10.0 is whole.
    if number is None or number != int(number) or not 1 <= number <= MAX_FACTOR:
        raise UsageError(f"it must be a whole number from 1 to {MAX_FACTOR}", subject="factor")
    return int(number)


def _read_rate(value: object) -> float | None:
    if value is None or value == "":
        return None
    number = _read_number(value)
    if number is None or number <= 0:
        raise UsageError("it must be a number above zero", subject="rate")
    return number


def _read_number(value: object) -> float | None:
    """None for what is no finite number, `true` too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _read_wait(form: Mapping[str, Any]) -> timedelta | None:
    text = _read_text(form, "answer_within")
    if not text:
        return None
    try:
        found = parse_duration(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a duration", subject="answer_within", hint="such as 30m, 2h or 1d"
        ) from None
    if not timedelta(0) < found <= MAX_WAIT:
        raise UsageError(
            f"it must be longer than zero and at most {MAX_WAIT.days}d", subject="answer_within"
        )
    return found
