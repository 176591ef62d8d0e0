"""Hooks: who is told of a stream's verdict when it changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from backlogctl.config.base import Duration, Section, Text, describe_unknown, fail_at

# Verdicts, best first (`backlogctl.monitoring.verdict.status`); `ok` is no trouble.
Severity = Literal[
    "lagging",
    "unknown",
    "warn",
    "blocked",
    "stall",
    "stop",
    "rewind",
    "beyond_end",
    "losing",
    "lost",
]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Shorter parts of a URL are names of services, ports and options.
_SECRET_CHARACTERS = 8
_APPRISE = re.compile(r"[a-z][a-z0-9]*://[!-~]+")
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


def _check_apprise(value: SecretStr) -> SecretStr:
    """The shape only: which services there are is known to the library, which takes a second."""
    if not _APPRISE.fullmatch(value.get_secret_value()):
        raise ValueError("must be a URL of apprise such as slack://TOKEN_A/TOKEN_B/TOKEN_C")
    return value


SecretKey = Annotated[SecretStr, AfterValidator(_check_key)]


class Hook(Section):
    """One that `watch` tells of verdicts: `apprise` or `webhook`, one of them."""

    apprise: Annotated[SecretStr, AfterValidator(_check_apprise)] | None = Field(
        default=None,
        description="URL of [apprise](https://github.com/caronc/apprise/wiki): Slack, PagerDuty, "
        "Teams, e-mail and more. By reference: it is a secret.",
    )
    webhook: Annotated[SecretStr, AfterValidator(_check_secret_url)] | None = Field(
        default=None,
        description="URL that gets a JSON document by POST. By reference where a part of it is a "
        "secret.",
    )
    token: SecretKey | None = Field(
        default=None, description="With `webhook`: sent as `Authorization: Bearer`. By reference."
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
        if (self.apprise is None) == (self.webhook is None):
            raise ValueError("needs `apprise` or `webhook`, and only one of them")
        if self.token is not None:
            if self.webhook is None:
                raise ValueError("`token` goes with `webhook`")
            parts = urlsplit(self.reveal_url())
            if parts.scheme.casefold() != "https" and parts.hostname not in _LOOPBACK:
                raise ValueError("must be https: a secret goes with each message")
        return self

    @property
    def kind(self) -> str:
        """`webhook`, or the service that apprise sends to."""
        return "webhook" if self.webhook else urlsplit(self.reveal_url()).scheme

    @property
    def resolves_alerts(self) -> bool:
        """Whether a message that all is well closes an alert of the service."""
        parts = urlsplit(self.reveal_url())
        return parts.scheme == "pagerduty" and "action=map" in parts.query

    def reveal_url(self) -> str:
        """Where messages go: only for the call that sends."""
        url = self.apprise or self.webhook
        assert url is not None
        return url.get_secret_value()

    def reveal_secrets(self) -> tuple[str, ...]:
        """The values that must be masked in any text; of apprise's URL its parts, too, but no
        address."""
        held = [one.get_secret_value() for one in (self.apprise, self.token) if one is not None]
        if self.apprise is not None:
            url = self.reveal_url()
            parts = re.split(r"[/:@?&=,]+", unquote(url))
            held += [part for part in parts if len(part) >= _SECRET_CHARACTERS and "." not in part]
            password = urlsplit(url).password
            held += [password, unquote(password)] if password else []
        return tuple(held)

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
