"""How a look-back service works, and which services it asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """A service that is asked what became of its messages: by `http` or `grpc`, one of them.

    Attributes:
        http: URL that is asked by POST.
        grpc: `HOST:PORT` of a server of `backlog.look_back.v1.LookBack`.
        networks: addresses that its name may resolve to although they are not public.
        timeout: for a whole answer.
        at_once: questions under way at once.
    """

    http: str | None = None
    grpc: str | None = None
    tls: bool = True
    token: str | None = field(default=None, repr=False)
    networks: tuple[str, ...] = ()
    timeout: timedelta = timedelta(seconds=5)
    at_once: int = 4

    @property
    def address(self) -> tuple[str, int]:
        if self.http is not None:
            parts = urlsplit(self.http)
            return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        host, _, port = (self.grpc or "").rpartition(":")
        return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class LookBackSettings:
    """How a look-back service works.

    Attributes:
        topic, group: where applications prepare messages, and who reads them.
        partitioner: of forwarded messages, `murmur2` or `crc32`.
        first_check: a prepared message of which nothing is heard so long is asked about.
        pause, longest_pause: after an answer that settles nothing; doubled each time.
        max_checks: questions without a settling answer before a message is parked.
        wait_for_prepare: a commit whose prepared message does not come so long is parked.
        max_forwards: refusals by the brokers before a message is parked; from 2.
        lease: so long others wait for what an instance that died was sending.
        keep: what has ended is kept so long; longer than the topic's retention.
        archive: folder for what is older, as Parquet; None deletes it.
    """

    topic: str = "look_back_msg"
    group: str = "backlog-look-back"
    partitioner: str = "murmur2"
    first_check: timedelta = timedelta(minutes=1)
    pause: timedelta = timedelta(minutes=1)
    longest_pause: timedelta = timedelta(hours=1)
    max_checks: int = 15
    wait_for_prepare: timedelta = timedelta(hours=1)
    max_forwards: int = 10
    lease: timedelta = timedelta(minutes=1)
    keep: timedelta = timedelta(days=30)
    archive: Path | None = None
    services: Mapping[str, ServiceSettings] = field(default_factory=dict)
