"""A ledger that is written by hand, with a clock that is turned by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from backlogctl.config import Config
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.monitoring.offsets.timeline import read_timeline
from backlogctl.monitoring.verdict.status import GroupStatus, Retention
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.look import StreamContext, assess_stream
from backlogctl.replay.engine.kind import Traits, Workspace
from backlogctl.replay.engine.plan import Plan
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.web.deliveries import DeliveryLook
from backlogctl.replay.web.page.words import say_word
from backlogctl.values import (
    Cause,
    Certainty,
    Gap,
    GapState,
    PartitionSample,
    Recovery,
    RecoveryState,
    Sample,
)
from tests.kit.ledger import create_recovery
from tests.kit.shop import SOURCE

NOW = datetime(2026, 11, 21, 6, 40, tzinfo=UTC)
DAY = timedelta(hours=24)
ACTOR = "os:ada@ops-1"
SECRET = "hunter2-secret"
STREAMS = ("clicks", "emails", "invoices", "orders", "payments", "shipments")
# Of one partition at a moment: log start, committed, end.
Offsets = Callable[[datetime, int], tuple[int, int | None, int]]


@dataclass
class Night:
    """A ledger whose clock is turned by hand, and a board."""

    config: Config
    ledger: Ledger
    board: Board = field(default_factory=Board)
    now: datetime = NOW
    lean: bool = False  # fewer samples, for tests
    deliveries: tuple[DeliveryLook, ...] = ()

    @classmethod
    def begin(cls, directory: Path, **document: Any) -> Night:
        """An empty ledger and a configuration of six streams, or of what is said."""
        whole = {
            "ledger": "sqlite:///ledger.db",
            "clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}},
            "sources": {"shop": {"url": "postgresql+psycopg://app:${env:PASSWORD}@db/shop"}},
            "streams": {name: make_stream(name) for name in STREAMS},
            **document,
        }
        config = Config.from_text(json.dumps(whole), directory, {"PASSWORD": SECRET})
        night = cls(config, open_ledger(config.ledger_url()))
        # The ledger's own clock, so that what was done last night has last night's times.
        night.ledger._database.now = lambda connection: night.now  # type: ignore[method-assign]
        return night

    @property
    def workspace(self) -> Workspace:
        """What the page is made of."""
        return Workspace(self.config, self.ledger, KINDS)

    def at(self, hours_ago: float = 0.0, seconds: float = 0.0) -> None:
        """Turns the clock."""
        self.now = NOW - timedelta(hours=hours_ago) + timedelta(seconds=seconds)

    def sample(
        self,
        stream: str,
        offsets: Offsets,
        partitions: int = 6,
        state: str = "stable",
        times: Sequence[datetime] = (),
    ) -> None:
        """Samples of two and a half days: rare ones long ago, often lately; or at these times."""
        rare, fine, lately = (4, 120, 20) if self.lean else (1, 12, 41)
        moments = [NOW - timedelta(hours=hour) for hour in range(60, 26, -rare)]
        moments += [NOW - timedelta(minutes=fine * n) for n in range(26 * 60 // fine, 1, -1)]
        moments += [NOW - timedelta(seconds=30 * step) for step in range(lately, -1, -1)]
        for at in times or moments:
            parts = []
            for number in range(partitions):
                low, committed, end = offsets(at, number)
                parts.append(PartitionSample(number, low, committed, end, end))
            group = f"{stream}-service"
            self.ledger.samples.add(
                Sample(stream, "main", stream, group, f"id-{stream}", at, tuple(parts), state, 0.2)
            )

    def look(self, stream: str, retention: timedelta | None = DAY) -> GroupStatus:
        """Judges the newest sample and puts it on the board."""
        *history, sample = read_timeline(self.ledger, self.config.streams[stream])
        status = assess_stream(
            sample,
            "read_committed",
            history,
            self.ledger.gaps.list(stream),
            StreamContext(
                Retention(retention, None), consumers=3, has_consumers=True, has_source=True
            ),
        )
        self.board.put_stream(status)
        return status

    def lose(
        self,
        stream: str,
        partition: int,
        start: int | None,
        end: int | None,
        hours_ago: float = 3.0,
        cause: Cause = Cause.EXPIRED,
        certainty: Certainty = Certainty.EXACT,
        reason: str = "",
    ) -> Gap:
        """A gap, seen so long ago."""
        self.at(hours_ago)
        return self.ledger.gaps.record(
            Gap(
                id="",
                stream=stream,
                cluster="main",
                topic=stream,
                group=f"{stream}-service",
                topic_id=f"id-{stream}",
                partition=partition,
                start=start,
                end=end,
                cause=cause,
                certainty=certainty,
                state=GapState.OPEN,
                first_time=NOW - timedelta(hours=31),
                last_time=NOW - timedelta(hours=27, minutes=12),
                detected_at=self.now,
                reason=reason,
            )
        )

    def plan(self, plan: Plan, *gaps: Gap) -> Recovery:
        """A planned recovery."""
        return self.keep(plan.kind, plan.dump(), plan.stream, gaps)

    def keep(
        self, kind: str, plan: Mapping[str, Any], stream: str = "orders", gaps: Sequence[Gap] = ()
    ) -> Recovery:
        """Whatever is stored as a plan, of a kind that may not be known."""
        traits = KINDS.get(kind).traits if kind in KINDS.names() else Traits()
        return create_recovery(
            self.ledger,
            kind,
            stream,
            group=f"{stream}-service",
            plan=plan,
            gaps=[gap.id for gap in gaps],
            by=ACTOR,
            stops_consumers=traits.stops_consumers,
            holds_when_failed=traits.holds_when_failed,
        )

    def approve(self, recovery: Recovery) -> Recovery:
        """Approved by somebody, for a day."""
        return self.ledger.recoveries.approve(
            recovery.id, "Grace", "os:grace@ops-2", recovery.plan_hash, self.now + DAY
        )

    def advance(self, recovery: Recovery, to: RecoveryState, **detail: Any) -> Recovery:
        """Another state."""
        return self.ledger.recoveries.advance(recovery.id, to, actor=ACTOR, detail=detail)


def make_stream(name: str) -> dict[str, Any]:
    """A stream with a source."""
    return {
        "cluster": "main",
        "topic": name,
        "group": f"{name}-service",
        "isolation": "read_committed",
        "source": SOURCE,
    }


def make_groups() -> tuple[GroupStatus, ...]:
    """Other groups of the cluster."""
    rows = (
        ("search-indexer", "products", "stall", 48_210, 0, None),
        ("reporting", "payments", "losing", 1_904_331, 0, 20_100.0),
        ("mirror", "orders", "ok", 0, 0, None),
    )
    return tuple(make_group(*row) for row in rows)


def make_group(
    group: str,
    topic: str,
    verdict: str,
    lag: int = 0,
    lost: int = 0,
    loss: float | None = None,
    **changes: Any,
) -> GroupStatus:
    """A group that no stream is about."""
    from backlogctl.monitoring.verdict.status import Verdict

    values: dict[str, Any] = {
        "stream": "",
        "cluster": "main",
        "topic": topic,
        "group": group,
        "group_state": "stable",
        "taken_at": NOW - timedelta(seconds=9),
        "verdict": Verdict(verdict),
        "partitions": (),
        "lag": lag,
        "lag_seconds": None,
        "lost": lost,
        "seconds_to_drain": None,
        "seconds_to_loss": loss,
        "loss_by": None if loss is None else "time",
        "expected_loss": None,
        "consumed_per_second": None,
        "produced_per_second": None,
        "sentence": f"{topic}: {say_word(verdict)}",
        **changes,
    }
    return GroupStatus(**values)
