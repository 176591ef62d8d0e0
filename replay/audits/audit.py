"""What an audit is: it reads, says what it found, and claims no more than it can know."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pydantic import Field

from backlogctl.clock import utc_now
from backlogctl.config import Config, Stream
from backlogctl.config.base import Duration
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.rights import Right
from backlogctl.ledger.archives import ArchiveRecord
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.options import OptionalMoment
from backlogctl.replay.engine.plan import Options
from backlogctl.replay.observe.rights import list_seeing
from backlogctl.values import Gap, to_document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(
    workspace: Workspace, stream: Stream, audit: str, archives: Iterable[ArchiveRecord] = ()
) -> SparkSession:
    """With what the places of these archives need.

    Raises:
        SparkFailure, EmbeddedError: it did not start.
    """
    from backlogctl.spark_backfill.spark.cluster import needs_s3
    from backlogctl.spark_backfill.spark.session import open_session

    return open_session(
        workspace.config.spark,
        f"backlogctl audit {audit} {stream.name}",
        staging=workspace.config.staging.dir,
        s3=any(needs_s3(one.location) for one in archives),
    )


@contextmanager
def reading_topic(workspace: Workspace, stream: Stream, doing: str) -> Iterator[None]:
    """While Spark reads the topic, and what it is compared with: what it raises is one error.

    Raises:
        KafkaFailure, StagingError.
    """
    from backlogctl.spark_backfill.failures import list_secrets, translating

    with translating(
        doing,
        subject=f"topic {stream.topic}",
        hint="where retention removed messages meanwhile, look again, with a later --since",
        kind=KafkaFailure,
        secrets=list_secrets(workspace.properties(stream)),
    ):
        yield


# Where an audit keeps what it reads of a consumer's table while it compares.

_PREFIX = "audit-"
_OLDEST_SECONDS = (
    2 * 86_400.0
)  # of one on another host, of which nobody knows whether it is at work


@contextmanager
def open_folder(config: Config, kind: str = _PREFIX) -> Iterator[Path]:
    """An empty folder under `staging.dir`, the owner's alone; it is gone afterwards.

    Those of the kind that were killed are removed first: they hold the identities of messages.
    """
    root = config.staging.dir
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep_folders(root, kind)
    prefix = f"{kind}{socket.gethostname()}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as made:
        yield Path(made)


def sweep_folders(root: Path, kind: str = _PREFIX) -> None:
    """Removes what killed audits left, or others of a kind; what cannot be removed stays."""
    for folder in root.glob(f"{kind}*-*-*"):
        host, pid, _ = folder.name.removeprefix(kind).rsplit("-", 2)
        with suppress(OSError, ValueError):
            if host == socket.gethostname():
                is_left = not psutil.pid_exists(int(pid))
            else:
                is_left = time.time() - folder.stat().st_mtime > _OLDEST_SECONDS
            if is_left:
                shutil.rmtree(folder)


Say = Callable[[str], None]
# A message may come late for as long as its producer tries: `delivery.timeout.ms` is 2 min in Java,
# `message.timeout.ms` 5 min in librdkafka.
GRACE = timedelta(minutes=5)


class AuditLevel(StrEnum):
    """Worst first."""

    LOST = "lost"  # messages are missing, and nothing else explains it
    SUSPECT = "suspect"  # messages may be missing; something else may explain it
    UNKNOWN = "unknown"  # cannot be told from here, or not yet
    NOTED = "noted"  # worth knowing; no message is missing


_ORDER = {level: number for number, level in enumerate(AuditLevel)}


class SpanOptions(Options):
    """What of a stream is looked at."""

    since: OptionalMoment = Field(
        default=None,
        title="Since",
        description="Messages of this time, by their own timestamps, or later.",
    )
    until: OptionalMoment = Field(
        default=None,
        title="Until",
        description="Messages before this time, by their own timestamps.",
    )


class AuditOptions(SpanOptions):
    """And how long what is in flight is waited for."""

    grace: Duration | None = Field(
        default=None,
        title="Grace",
        description="What came later than this ago is not judged: it may still be on its way. Else "
        "5m, which is how long librdkafka tries.",
    )

    @property
    def waits(self) -> timedelta:
        """The grace that holds."""
        return GRACE if self.grace is None else self.grace


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that was found.

    Attributes:
        check: its name, and the heading in docs/audits.md.
        found: what was read, as a sentence.
        mend: what to do about it, as a sentence; may be empty.
        count: messages that are missing, at most; None where that is unknown or none are.
        detail: figures for programs, plain JSON.
    """

    check: str
    level: AuditLevel
    found: str
    mend: str = ""
    commands: tuple[str, ...] = ()
    count: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**to_document(self), "page": f"docs/audits.md#{self.check}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutcome:
    """What an audit found.

    Attributes:
        figures: what was looked at, each with its unit in its name; None is unknown.
        findings: in any order.
        claims: what it proves, and what it cannot, as one sentence.
        losses: what is lost for all that is known, and can be put back.
        answered: gaps on record that turned out to be none, and why.
    """

    figures: Mapping[str, int | None]
    findings: Iterable[AuditFinding]
    claims: str
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    losses: tuple[Gap, ...] = ()
    answered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What one audit of one stream came to; as in `AuditOutcome`, with the findings worst first.

    Attributes:
        recorded: the gaps that have the losses on record, as they are now.
        next_commands: what plans to put them back.
    """

    audit: str
    stream: str
    topic: str
    bounds: SpanOptions
    began_at: datetime
    seconds: float
    figures: Mapping[str, int | None]
    findings: tuple[AuditFinding, ...]
    claims: str
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    losses: tuple[Gap, ...] = ()
    answered: Mapping[str, str] = field(default_factory=dict)
    recorded: tuple[Gap, ...] = ()
    next_commands: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Its worst level; `clean` where nothing is missing as far as it can tell."""
        worst = min((_ORDER[one.level] for one in self.findings), default=_ORDER[AuditLevel.NOTED])
        level = list(AuditLevel)[worst]
        return "clean" if level is AuditLevel.NOTED else str(level)

    @property
    def missing(self) -> int:
        """Messages that are lost for all that is known."""
        return sum(one.count or 0 for one in self.findings if one.level is AuditLevel.LOST)

    @property
    def exit_code(self) -> int:
        """0 nothing is missing, 1 something is or may be, 2 cannot tell."""
        return {"clean": 0, "lost": 1, "suspect": 1}.get(self.verdict, 2)

    def to_json(self) -> dict[str, Any]:
        names = ("audit", "stream", "topic", "began_at", "verdict", "missing", "figures")
        return {
            **to_document(self, *names, "next_commands", "claims", "tables"),
            **to_document(self.bounds, "since", "until"),
            "seconds": round(self.seconds, 1),
            "findings": [one.to_json() for one in self.findings],
            "gaps": [gap.id for gap in self.recorded],
        }


class Audit(ABC):
    """One way to look for losses that offsets do not show. It changes nothing in Kafka."""

    name: str
    summary: str
    options_model: type[SpanOptions] = AuditOptions
    uses_spark: bool = True

    def list_rights(self, stream: Stream) -> tuple[Right, ...]:
        """What it must be allowed on the cluster."""
        return list_seeing(stream)

    def examine(self, workspace: Workspace, stream: Stream, bounds: Any, say: Say) -> AuditResult:
        """Reads and judges.

        Args:
            bounds: of `options_model`.

        Raises:
            BacklogError: something that it needs could not be read.
        """
        began_at, begun = utc_now(), time.monotonic()
        found = self.look(workspace, stream, bounds, say)
        return AuditResult(
            audit=self.name,
            stream=stream.name,
            topic=stream.topic,
            bounds=bounds,
            began_at=began_at,
            seconds=time.monotonic() - begun,
            figures=found.figures,
            # Of one level in the order they came.
            findings=tuple(sorted(found.findings, key=lambda one: _ORDER[one.level])),
            claims=found.claims,
            tables=found.tables,
            losses=found.losses,
            answered=found.answered,
        )

    @abstractmethod
    def look(self, workspace: Workspace, stream: Stream, bounds: Any, say: Say) -> AuditOutcome:
        """As `examine`: what each audit does itself."""
