"""Hooks: who is told of a stream's verdict when it changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from backlog.config.base import Duration, Section, Text, describe_unknown, fail_at

# Verdicts, best first (`monitoring.verdicts`); `ok` is no trouble.
Severity = Literal[
    "lagging",
    "unknown",
    "warn",
    "stall",
    "stop",
    "rewind",
    "beyond_end",
    "losing",
    "lost",
]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_URL = re.compile(r"(?i)https?://[!-~]+")
_KEY = re.compile(r"[!-~]+")


def _check_url(value: str) -> str:
    """Refuses what is no URL of http or https, without a value in its words."""
    try:
        parts = urlsplit(value)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        has_host = False
    if not has_host or not _URL.fullmatch(value):
        raise ValueError("must be a URL such as https://hooks.example.com/backlog")
    if "@" in parts.netloc:
        raise ValueError("a user or password in the URL is not taken: give a `token`")
    return value


def _check_secret_url(value: SecretStr) -> SecretStr:
    _check_url(value.get_secret_value())
    return value


def _check_key(value: SecretStr) -> SecretStr:
    """Refuses what cannot stand in a header or as a key: spaces, line breaks."""
    if not _KEY.fullmatch(value.get_secret_value()):
        raise ValueError("must be printable ASCII without spaces")
    return value


SecretUrl = Annotated[SecretStr, AfterValidator(_check_secret_url)]
SecretKey = Annotated[SecretStr, AfterValidator(_check_key)]


class Hook(Section):
    """One that `watch` tells of verdicts: `slack`, `pagerduty` or `webhook`, one of them."""

    slack: SecretUrl | None = Field(
        default=None,
        description="URL of a Slack incoming webhook, by reference: it is a secret.",
    )
    pagerduty: SecretKey | None = Field(
        default=None,
        description="Integration key (routing key) of PagerDuty's Events API v2, by reference.",
    )
    webhook: SecretUrl | None = Field(
        default=None,
        description="URL that gets a JSON document by POST. By reference where a part of it is a "
        "secret.",
    )
    token: SecretKey | None = Field(
        default=None,
        description="With `webhook`: sent as `Authorization: Bearer`. By reference.",
    )
    pagerduty_url: Annotated[Text, AfterValidator(_check_url)] = Field(
        default="https://events.pagerduty.com/v2/enqueue",
        description="With `pagerduty`: where events go. In the EU: "
        "`https://events.eu.pagerduty.com/v2/enqueue`.",
    )
    from_: Severity = Field(
        default="unknown",
        validation_alias="from",
        serialization_alias="from",
        description="The least severe verdict that it is told of, by the order of "
        "[the verdicts](concepts.md#the-words-of-status).",
    )
    streams: tuple[Text, ...] = Field(
        default=("*",), description="Names or glob patterns of streams that it is told of."
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10), description="How long it has for an answer."
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Hook:
        if sum(one is not None for one in (self.slack, self.pagerduty, self.webhook)) != 1:
            raise ValueError("needs `slack`, `pagerduty` or `webhook`, and only one of them")
        if self.token is not None and self.webhook is None:
            raise ValueError("`token` goes with `webhook`")
        if self.webhook is None or self.token is not None:
            # What is sent, or the URL itself, is a secret.
            parts = urlsplit(self.reveal_url())
            if parts.scheme.casefold() != "https" and parts.hostname not in _LOOPBACK:
                raise ValueError("must be https: a secret goes with each message")
        return self

    @property
    def kind(self) -> str:
        """`slack`, `pagerduty` or `webhook`."""
        return "slack" if self.slack else "pagerduty" if self.pagerduty else "webhook"

    def reveal_url(self) -> str:
        """Where messages go: only for the call that sends."""
        found = self.slack or self.webhook
        return self.pagerduty_url if found is None else found.get_secret_value()

    def reveal_secrets(self) -> tuple[str, ...]:
        """The values that must be masked in any text."""
        held = (self.slack, self.pagerduty, self.token)
        return tuple(one.get_secret_value() for one in held if one is not None)

    def is_for(self, stream: str) -> bool:
        """Whether it is told of this stream."""
        return any(fnmatchcase(stream, pattern) for pattern in self.streams)


def check_hook_streams(hooks: Mapping[str, Hook], streams: Collection[str]) -> None:
    """Refuses a pattern that no stream matches: its hook would be silent for a misspelt name."""
    for name, hook in hooks.items():
        for pattern in hook.streams:
            if pattern != "*" and not any(fnmatchcase(stream, pattern) for stream in streams):
                text = describe_unknown("stream", pattern, streams)
                raise fail_at(("watch", "hooks", name, "streams"), text)
