"""What the last audits of a stream found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backlog.ledger import Ledger
from backlog.ledger.audits import AuditRecord
from replay.telling.figures import Figure, make_counts_figure

_ORDER = ("lost", "suspect", "unknown", "clean")


@dataclass(frozen=True, slots=True)
class AuditView:
    """One audit; `command` looks again, `plot` is of counts, None where there are none."""

    name: str
    verdict: str
    at: datetime
    findings: tuple[Mapping[str, Any], ...]
    claims: str
    command: str
    plot: Figure | None


def read_audits(ledger: Ledger, stream: str) -> tuple[AuditView, ...]:
    """The last of each name, worst first.

    Raises:
        LedgerError.
    """
    found = sorted(ledger.audits.list_latest(stream), key=lambda one: _ORDER.index(one.verdict))
    return tuple(_view(record) for record in found)


def _view(record: AuditRecord) -> AuditView:
    document = record.document
    windows = document.get("windows") or ()
    return AuditView(
        name=record.audit,
        verdict=record.verdict,
        at=record.at,
        findings=tuple(document.get("findings") or ()),
        claims=str(document.get("claims") or ""),
        command=f"backlogctl audit {record.audit} {record.stream}",
        plot=make_counts_figure(windows) if windows else None,
    )
