"""What audits found: the newest of each stream and audit are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Index, delete, func, insert, select

from backlog.ledger.database import Manager
from backlog.ledger.models import table_of

KEPT = 50


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One audit of one stream.

    Attributes:
        verdict: clean | lost | suspect | unknown.
        missing: messages that are lost for all that is known.
        document: what `audit --json` gives, without its tables.
    """

    stream: str
    cluster: str
    audit: str
    at: datetime
    verdict: str
    missing: int
    document: Mapping[str, Any]


audits = table_of(
    "backlog_audits", AuditRecord, Index("backlog_audits_by_stream", "stream", "audit", "id")
)


class Audits(Manager):
    def record(self, record: AuditRecord) -> None:
        """Adds one; of its stream and audit only the `KEPT` newest stay."""
        own = (audits.c.stream == record.stream) & (audits.c.audit == record.audit)
        with self._database.write() as connection:
            connection.execute(insert(audits), asdict(record))
            newest = select(audits.c.id).where(own).order_by(audits.c.id.desc()).limit(KEPT)
            kept = [row.id for row in connection.execute(newest)]
            connection.execute(delete(audits).where(own, audits.c.id < min(kept)))

    def list_latest(self, stream: str | None = None) -> tuple[AuditRecord, ...]:
        """The last of each stream and audit, by stream and name."""
        last = select(func.max(audits.c.id)).group_by(audits.c.stream, audits.c.audit)
        query = select(audits).where(audits.c.id.in_(last))
        if stream is not None:
            query = query.where(audits.c.stream == stream)
        return self._list(query.order_by(audits.c.stream, audits.c.audit), AuditRecord)
