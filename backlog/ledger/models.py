"""The ledger's tables. Names start with `backlog_`, so that a shared database stays tidy.

Triggers (transitions, immutable columns, the append-only events) are in the migrations; a test
compares these tables with what the migrations make.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
    true,
)

from backlogctl_delivery.database import JsonText, UtcTime

metadata = MetaData()
RowId = BigInteger().with_variant(Integer(), "sqlite")

ACTIVE = "state IN ('approved', 'running', 'paused') OR (state = 'failed' AND holds_when_failed)"


def _make_texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]


counters = Table(
    "backlog_counters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

transitions = Table(
    "backlog_transitions",
    metadata,
    Column("subject", String(16), primary_key=True),
    Column("from_state", String(16), primary_key=True),
    Column("to_state", String(16), primary_key=True),
)

samples = Table(
    "backlog_samples",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    *_make_texts("stream", "cluster", "topic", "group_id", "topic_id"),
    Column("taken_at", UtcTime, nullable=False),
    # [[partition, low, committed or null, lso, high], ...]
    Column("partitions", JsonText, nullable=False),
    Index("backlog_samples_by_time", "stream", "taken_at"),
)

commit_marks = Table(
    "backlog_commit_marks",
    metadata,
    Column("stream", Text, primary_key=True),
    Column("group_id", Text, primary_key=True),
    Column("topic_id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("max_committed", BigInteger, nullable=False),
    Column("last_committed", BigInteger, nullable=False),
    Column("seen_at", UtcTime, nullable=False),
)

bookmarks = Table(
    "backlog_bookmarks",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    *_make_texts("stream", "group_id", "topic_id"),
    Column("partition", Integer, nullable=False),
    Column("committed", BigInteger, nullable=False),
    Column("at_offset", BigInteger, nullable=False),
    Column("digest", String(32), nullable=False),
    Column("noted_at", UtcTime, nullable=False),
    Index(
        "backlog_bookmarks_one_per_commit",
        "stream",
        "group_id",
        "topic_id",
        "partition",
        "committed",
        unique=True,
    ),
)

recoveries = Table(
    "backlog_recoveries",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    *_make_texts("stream", "cluster", "topic", "group_id"),
    Column("state", String(16), nullable=False),
    Column("plan_hash", Text, nullable=False),
    Column("plan", JsonText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("approved_by", Text),
    Column("approved_identity", Text),
    Column("approved_hash", Text),
    Column("approval_expires_at", UtcTime),
    Column("requested", String(16)),
    Column("injected", BigInteger, nullable=False, server_default="0"),
    Column("skipped", BigInteger, nullable=False, server_default="0"),
    Column("detail", JsonText, nullable=False),
    Column("events_head", String(64), nullable=False),
    Column("events_length", BigInteger, nullable=False, server_default="0"),
    Column("lease_host", Text),
    Column("lease_pid", BigInteger),
    Column("lease_started", Text),
    Column("lease_token", Text),
    Column("lease_acquired_at", UtcTime),
    Column("lease_renewed_at", UtcTime),
    Column("lease_until", UtcTime),
    # What is not known is treated as if it left something changed.
    Column("stops_consumers", Boolean, nullable=False, server_default=true()),
    Column("holds_when_failed", Boolean, nullable=False, server_default=true()),
    CheckConstraint("requested IN ('pause', 'cancel')", name="backlog_recoveries_requested"),
    CheckConstraint(
        "state IN ('planned', 'rejected') OR (approved_by IS NOT NULL AND approved_hash IS NOT NULL"
        " AND approved_hash = plan_hash AND approval_expires_at IS NOT NULL)",
        name="backlog_recoveries_approval",
    ),
    Index("backlog_recoveries_by_stream", "stream", "state"),
    *(
        Index(
            f"backlog_one_active_per_{name}",
            "cluster",
            column,
            unique=True,
            sqlite_where=text(ACTIVE),
            postgresql_where=text(ACTIVE),
        )
        for name, column in (("topic", "topic"), ("group", "group_id"))
    ),
)

gaps = Table(
    "backlog_gaps",
    metadata,
    Column("id", String(32), primary_key=True),
    *_make_texts("stream", "cluster", "topic", "group_id", "topic_id"),
    Column("partition", Integer, nullable=False),
    Column("start_offset", BigInteger),
    Column("end_offset", BigInteger),
    Column("cause", String(32), nullable=False),
    Column("certainty", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("first_time", UtcTime),
    Column("last_time", UtcTime),
    Column("detected_at", UtcTime, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("recovery_id", String(32), ForeignKey("backlog_recoveries.id")),
    Column("changed_at", UtcTime, nullable=False),
    Column("changed_by", Text, nullable=False, server_default=""),
    Column("archive", String(32)),
    Column("producer", Text),
    Column("epoch", BigInteger),
    Column("first_sequence", BigInteger),
    Column("last_sequence", BigInteger),
    CheckConstraint(
        "end_offset IS NULL OR (start_offset IS NOT NULL AND end_offset > start_offset)",
        name="backlog_gaps_range",
    ),
    CheckConstraint(
        "state <> 'waived' OR length(trim(reason)) > 0", name="backlog_gaps_waived_reason"
    ),
    CheckConstraint(
        "state IN ('open', 'waived') OR recovery_id IS NOT NULL", name="backlog_gaps_recovery"
    ),
    # Ranges of gaps that are not over are disjoint, so a start names one.
    Index(
        "backlog_gaps_one_per_start",
        "stream",
        "group_id",
        "topic_id",
        "partition",
        "start_offset",
        unique=True,
        sqlite_where=text("end_offset IS NOT NULL AND state NOT IN ('waived', 'verified')"),
        postgresql_where=text("end_offset IS NOT NULL AND state NOT IN ('waived', 'verified')"),
    ),
    Index("backlog_gaps_by_state", "stream", "state"),
)

recovery_gaps = Table(
    "backlog_recovery_gaps",
    metadata,
    Column("recovery_id", String(32), ForeignKey("backlog_recoveries.id"), primary_key=True),
    Column("gap_id", String(32), ForeignKey("backlog_gaps.id"), primary_key=True),
)

chunks = Table(
    "backlog_chunks",
    metadata,
    Column("recovery_id", String(32), ForeignKey("backlog_recoveries.id"), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    *_make_texts("path", "ids_path"),
    Column("canary", Boolean, nullable=False),
    Column("state", String(16), nullable=False),
    Column("first_offset", BigInteger),
    Column("last_offset", BigInteger),
    Column("injected_at", UtcTime),
    CheckConstraint("state IN ('staged', 'injected')", name="backlog_chunks_state"),
)

events = Table(
    "backlog_events",
    metadata,
    Column("recovery_id", String(32), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    *_make_texts("actor", "action"),
    Column("detail", JsonText, nullable=False),
    Column("previous_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    ForeignKeyConstraint(["recovery_id"], ["backlog_recoveries.id"]),
)

steps = Table(
    "backlog_steps",
    metadata,
    Column("recovery_id", String(32), ForeignKey("backlog_recoveries.id"), primary_key=True),
    Column("step", String(64), primary_key=True),
    Column("first_started_at", UtcTime, nullable=False),
    Column("last_started_at", UtcTime, nullable=False),
    Column("completed_at", UtcTime),
    Column("attempts", Integer, nullable=False),
    Column("detail", JsonText, nullable=False),
)

temporary_topics = Table(
    "backlog_temporary_topics",
    metadata,
    Column("recovery_id", String(32), ForeignKey("backlog_recoveries.id"), primary_key=True),
    *_make_texts("cluster", "name"),
    Column("topic_id", Text),
    Column("partitions", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("deleted_at", UtcTime),
)

archives = Table(
    "backlog_archives",
    metadata,
    Column("recovery_id", String(32), ForeignKey("backlog_recoveries.id"), primary_key=True),
    *_make_texts("stream", "cluster", "topic", "topic_id", "location"),
    Column("manifest_sha256", String(64), nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # [[partition, start, end, messages, first time or null, last time or null], ...]
    Column("ranges", JsonText, nullable=False),
    Column("made_at", UtcTime, nullable=False),
    Column("purged_at", UtcTime),
    Column("purged_by", Text),
)

holds = Table(
    "backlog_holds",
    metadata,
    Column("id", String(32), primary_key=True),
    *_make_texts("cluster", "topic", "topic_id", "stream", "holder"),
    # {setting: value before, null where the topic did not set it}, {setting: value}, and
    # {setting: [values it was raised to before that]}
    Column("old", JsonText, nullable=False),
    Column("raised", JsonText, nullable=False),
    Column("earlier", JsonText, nullable=False),
    Column("until", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("released_at", UtcTime),
    Column("actor", Text, nullable=False),
    Column("in_force", Boolean),
    Index(
        "backlog_holds_one_per_holder",
        "cluster",
        "topic",
        "topic_id",
        "holder",
        unique=True,
        sqlite_where=text("released_at IS NULL"),
        postgresql_where=text("released_at IS NULL"),
    ),
)

burndown = Table(
    "backlog_burndown",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("recovery_id", String(32), ForeignKey("backlog_recoveries.id"), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("step", String(64), nullable=False),
    Column("source_lag", BigInteger, nullable=False),
    Column("temporary_lag", BigInteger, nullable=False),
    Column("relayed", BigInteger, nullable=False),
    Column("handled", BigInteger, nullable=False),
    Column("consumers", Integer),
    Index("backlog_burndown_by_time", "recovery_id", "at"),
)

disks = Table(
    "backlog_disks",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("cluster", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("broker", Integer, nullable=False),
    Column("usable_bytes", BigInteger),
    Column("total_bytes", BigInteger),
    Column("topic", Text),
    Column("topic_bytes", BigInteger),
    Index("backlog_disks_by_time", "cluster", "at"),
)

audits = Table(
    "backlog_audits",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    *_make_texts("stream", "cluster"),
    Column("audit", String(16), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("missing", BigInteger, nullable=False),
    Column("document", JsonText, nullable=False),
    Index("backlog_audits_by_stream", "stream", "audit", "id"),
)
