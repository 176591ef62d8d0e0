"""Outboxes: databases whose committed messages `backlogctl outbox run` sends, and `watch` sees."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from backlogctl.config.base import (
    DatabaseUrl,
    Duration,
    GroupId,
    Label,
    LocalPath,
    Section,
    Text,
    TopicName,
)
from backlogctl.config.hooks import SecretKey
from backlogctl.config.sections import Positive, check_database_url
from backlogctl_delivery.lookback.settings import LookBackSettings, ServiceSettings


class OutboxSection(Section):
    """The table `backlog_outbox` in the database of the same name under `sources`."""

    cluster: Label = Field(description="A name under `clusters`, where its messages go.")
    partitioner: Literal["murmur2", "crc32"] = Field(
        default="murmur2",
        description="How keys choose a partition: as the topics' other producers do.",
    )
    late: Duration = Field(
        default=timedelta(minutes=10),
        description="A message that is not sent so long after it was added is late, for the page "
        "and the doctor.",
    )
    keep: Duration | None = Field(
        default=None,
        description="`outbox run` deletes what was sent so long ago; without it nothing. Where a "
        "stream is rebuilt from it, longer than the retention of the topic.",
    )
    listen: Text | None = Field(
        default=None,
        description="Address and port of /metrics of `outbox run`; port 0 takes a free one.",
    )
    lease: Duration = Field(
        default=timedelta(seconds=60),
        description="How long the messages of a sender that died wait for another one.",
    )

    @field_validator("lease")
    @classmethod
    def _check_lease(cls, value: timedelta) -> timedelta:
        if value < timedelta(seconds=2):
            raise ValueError("must be 2 s or more")
        return value


# Look-back: where prepared messages are kept, when their services are asked, and who those are.

_TARGET = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


def _is_host(text: str) -> bool:
    """A name or an address; no number such as `127.1` or `2130706433`, which is one in disguise."""
    if re.fullmatch(r"[0-9.]+|.*:.*", text):
        try:
            ip_address(text)
        except ValueError:
            return False
    return bool(text)


def _check_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_good = parts.scheme in ("http", "https") and _is_host(parts.hostname or "")
        is_good &= parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not re.fullmatch(r"[!-~]+", value):
        raise ValueError("must be a URL such as https://payments.example.com/look-back")
    if "@" in parts.netloc:
        raise ValueError("a user or password in the URL is not taken: give a `token`")
    if parts.fragment:
        raise ValueError("must not have a fragment")
    return value


def _check_target(value: str) -> str:
    host, _, port = value.rpartition(":")
    is_good = _TARGET.fullmatch(value) is not None and _is_host(host.strip("[]"))
    if not is_good or not 0 < int(port) < 65536:
        raise ValueError("must be HOST:PORT")
    return value


def _check_network(value: str) -> str:
    try:
        ip_network(value)
    except ValueError:
        raise ValueError("must be an address or a network such as 10.1.0.0/16") from None
    return value


class LookBackService(Section):
    """A service that may be asked what became of its messages: `http` or `grpc`, one of them."""

    http: Annotated[Text, AfterValidator(_check_url)] | None = Field(
        default=None, description="URL that is asked by POST."
    )
    grpc: Annotated[Text, AfterValidator(_check_target)] | None = Field(
        default=None, description="`HOST:PORT` of a server of `backlog.look_back.v1.LookBack`."
    )
    tls: bool = Field(
        default=True, description="With `grpc`: TLS, verified by the certificates of this machine."
    )
    token: SecretKey | None = Field(
        default=None, description="Sent as `Authorization: Bearer`. By reference; needs TLS."
    )
    networks: tuple[Annotated[Text, AfterValidator(_check_network)], ...] = Field(
        default=(),
        description="Addresses or networks, not public, that its name may resolve to, such as "
        "`10.1.0.0/16`. Private, link-local and loopback addresses are refused without it.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=5), description="How long it has for a whole answer."
    )
    at_once: Positive = Field(
        default=4, description="Questions under way to it at once, of one instance."
    )

    @model_validator(mode="after")
    def _check_kind(self) -> LookBackService:
        if (self.http is None) == (self.grpc is None):
            raise ValueError("needs `http` or `grpc`, and only one of them")
        plain = self.http is not None and urlsplit(self.http).scheme == "http"
        if self.token is not None and (plain or (self.grpc is not None and not self.tls)):
            raise ValueError("`token` needs TLS: it would be read on the way")
        return self

    def to_settings(self) -> ServiceSettings:
        """As the service takes it."""
        given = {one.name: getattr(self, one.name) for one in fields(ServiceSettings)}
        token = None if self.token is None else self.token.get_secret_value()
        return ServiceSettings(**{**given, "token": token})


_DEFAULT = LookBackSettings()


class LookBack(Section):
    """Transactional messages: `backlogctl lookback run`."""

    database: Annotated[SecretStr, DatabaseUrl] = Field(
        description="SQLAlchemy URL, PostgreSQL, or SQLite for trying it out. The password by "
        "reference. A SQLite file is relative to the configuration file."
    )
    cluster: Label = Field(description="A name under `clusters`, of both topics.")
    topic: TopicName = Field(
        default=_DEFAULT.topic, description="The topic that applications prepare messages on."
    )
    group: GroupId = Field(
        default=_DEFAULT.group, description="The consumer group of the instances."
    )
    partitioner: Literal["murmur2", "crc32"] = Field(
        default="murmur2",
        description="How keys of forwarded messages choose a partition: as the business topics' "
        "other producers do.",
    )
    first_check: Duration = Field(
        default=_DEFAULT.first_check,
        description="A prepared message of which nothing is heard so long is asked about.",
    )
    pause: Duration = Field(
        default=_DEFAULT.pause,
        description="After an answer that settles nothing; twice as long after each further one.",
    )
    longest_pause: Duration = Field(
        default=_DEFAULT.longest_pause, description="The longest pause between two questions."
    )
    max_checks: Positive = Field(
        default=_DEFAULT.max_checks,
        description="After so many questions without a settling answer it is parked.",
    )
    wait_for_prepare: Duration = Field(
        default=_DEFAULT.wait_for_prepare,
        description="A commit whose prepared message has not come after so long is parked.",
    )
    max_forwards: Positive = Field(
        default=_DEFAULT.max_forwards,
        description="A message that the brokers refuse so often is parked. While they cannot be "
        "reached it is tried on and on.",
    )
    late: Duration = Field(
        default=timedelta(minutes=10),
        description="A message that has not ended so long after it was prepared is late, for the "
        "page and the doctor: longer than the longest business transaction.",
    )
    lease: Duration = Field(
        default=_DEFAULT.lease,
        description="So long others wait for what an instance that died was sending; what it was "
        "asking about waits for `timeout` and half of it. The brokers have half of it to take a "
        "message.",
    )
    keep: Duration = Field(
        default=_DEFAULT.keep,
        description="Messages that are forwarded or rolled back are kept so long, in whole days "
        "on PostgreSQL. Longer than the topic's retention: a message that is read again after "
        "that would be a new one.",
    )
    archive: LocalPath | None = Field(
        default=None,
        description="Directory for what is older than `keep`, as Parquet. Without it that is "
        "deleted.",
    )
    listen: Text = Field(
        default="127.0.0.1:9322",
        description="Address and port of /metrics; port 0 takes a free one.",
    )
    services: dict[Label, LookBackService] = Field(
        default_factory=dict, description="Who may be asked, by the name that messages give."
    )

    @field_validator("database")
    @classmethod
    def _check_url(cls, value: SecretStr) -> SecretStr:
        return check_database_url(value)

    @model_validator(mode="after")
    def _check_times(self) -> LookBack:
        if self.longest_pause < self.pause:
            raise ValueError("`longest_pause` must not be shorter than `pause`")
        if self.lease < timedelta(seconds=2):
            raise ValueError("`lease` must be 2 s or more")
        if self.keep < timedelta(days=1):
            raise ValueError("`keep` must be a day or more")
        return self

    def to_settings(self) -> LookBackSettings:
        """As the service takes them."""
        given = {one.name: getattr(self, one.name) for one in fields(LookBackSettings)}
        services = {name: one.to_settings() for name, one in self.services.items()}
        return LookBackSettings(**{**given, "services": services})

    def reveal_url(self) -> str:
        """The database's URL with its password: only for the call that connects."""
        return self.database.get_secret_value()

    def reveal_secrets(self) -> tuple[str, ...]:
        """The tokens, which must be masked in any text."""
        tokens = (service.token for service in self.services.values())
        return tuple(token.get_secret_value() for token in tokens if token is not None)
