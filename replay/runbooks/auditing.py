"""What a night audits: each stream as its configuration says, and what is told of each audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from backlog.config import Config, Stream
from replay.audits import AUDITS
from replay.audits.audit import AuditResult
from replay.audits.carrying import carry_out
from replay.recovery.workspace import Workspace

_TELLING = frozenset({"lost", "suspect"})


@dataclass(frozen=True, slots=True)
class NightAudit:
    """One audit of one stream."""

    stream: str
    audit: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def list_night_audits(config: Config, streams: Iterable[str] | None) -> tuple[NightAudit, ...]:
    """By stream, in the order of its `audits`; of those streams, or of all.

    Raises:
        ConfigurationError, UsageError: there is no such stream.
    """
    names = dict.fromkeys(streams or config.streams)
    chosen = [config.stream(name) for name in names]
    return tuple(NightAudit(stream.name, audit) for stream in chosen for audit in stream.audits)


def carry_out_audit(
    workspace: Workspace, stream: Stream, name: str, say: Callable[[str], None]
) -> AuditResult:
    """All of the topic, on record.

    Raises:
        BacklogError: something that it needs could not be read.
    """
    audit = next(one for one in AUDITS if one.name == name)
    return carry_out(audit, workspace, stream, audit.options_model(), say)


def is_alarming(found: AuditResult) -> bool:
    """Whether messages are missing, or may be: worth an event."""
    return found.verdict in _TELLING


def describe(found: AuditResult) -> dict[str, Any]:
    """What an event and the task's result say; nothing of any message."""
    return {
        "stream": found.stream,
        "audit": found.audit,
        "verdict": found.verdict,
        "missing": found.missing,
        "sentence": found.findings[0].found if found.findings else "nothing was found",
        "findings": [{"check": one.check, "level": str(one.level)} for one in found.findings],
        "gaps": [gap.id for gap in found.recorded],
        "next": next(iter(found.next_commands), f"backlogctl audit {found.audit} {found.stream}"),
    }
