"""Makes a plan of simulated losses through the product's own interface, with chosen evidence."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from backlogctl.config import Stream
from backlogctl.errors import BacklogError
from backlogctl.replay.kinds.rebuild.losses import date_edges, tighten_times
from backlogctl.spark_backfill.rebuild import stage_rebuild
from backlogctl.spark_backfill.request import RebuildRequest
from tests.accuracy.scenarios import EXACT, Judgement, judge, read_listed, read_staged
from tests.accuracy.services import Stage
from tests.accuracy.watching import GROUP, Sampling, Watched, find_begin
from tests.kit.kafka import properties_of
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = "refused"


class Method(StrEnum):
    """Which evidence the plan is given."""

    BOOKMARKS = "bookmarks"  # all that `watch` has
    COUNTING = "counting"  # no bookmarks
    WINDOWS = "windows"  # no bookmarks, and an order of rows that is not the log's
    CONSUMED = "consumed"  # the consumer's own table


@dataclass(frozen=True)
class Measured:
    """One plan: what it says of itself, and what the oracle says."""

    scenario: str
    sampling: Sampling
    method: Method
    verdict: str
    judgement: Judgement
    uncertain: int
    evidence: str
    reasons: tuple[str, ...]
    seconds: float

    @property
    def is_honest(self) -> bool:
        """`exact` is a promise."""
        return self.verdict != EXACT or self.judgement.is_faultless


def measure(
    spark: SparkSession,
    stage: Stage,
    watched: Watched,
    sampling: Sampling,
    method: Method,
    staging: Path,
) -> Measured:
    """Plans, reads what was staged, and has it judged."""
    traffic = stage.traffic
    request = make_request(stage, watched, method, staging / f"{stage.topic}-{sampling}-{method}")
    began = time.monotonic()
    try:
        outcome = stage_rebuild(spark, request)
    except BacklogError as error:
        nothing = judge(traffic, [])
        return Measured(
            traffic.scenario.name, sampling, method, REFUSED, nothing, 0, "", (str(error),),
            time.monotonic() - began,
        )  # fmt: skip
    seconds = time.monotonic() - began
    staged = read_staged(traffic, world.read_staged(request))
    listed: set[int] = set()
    if outcome.uncertain.count:
        rows = pq.read_table(outcome.uncertain.path, columns=["primary_key"]).to_pylist()
        listed = read_listed(traffic, (row["primary_key"][0] for row in rows))
    return Measured(
        scenario=traffic.scenario.name,
        sampling=sampling,
        method=method,
        verdict=outcome.verdict,
        judgement=judge(traffic, staged, listed),
        uncertain=outcome.uncertain.count,
        evidence=outcome.evidence,
        reasons=outcome.reasons,
        seconds=seconds,
    )


def make_request(stage: Stage, watched: Watched, method: Method, staging: Path) -> RebuildRequest:
    """The request as `backlogctl plan rebuild` makes it of these samples and bookmarks."""
    shape = stage.traffic.shape
    gaps = tighten_times(watched.gaps, watched.history)
    return RebuildRequest(
        recovery_id="r-20260302-0001",
        stream=make_stream(stage, method),
        sources={"shop": world.make_source(stage.database_url)},
        client_properties=properties_of(stage.bootstrap),
        partitions=len(stage.traffic.logs),
        topic_config=stage.topic_config,
        gaps=gaps,
        staging_root=staging,
        since=None if watched.is_dated else find_begin(stage.traffic) - shape.hour,
        edge_times=date_edges(gaps, watched.history),
        bookmarks=watched.bookmarks if method in (Method.BOOKMARKS, Method.CONSUMED) else (),
    )


def make_stream(stage: Stage, method: Method) -> Stream:
    """The stream's rules: immutable events by a header, or orders by their key."""
    shape, mutable = stage.traffic.shape, stage.traffic.scenario.mutable
    source: dict[str, Any] = {
        "database": "shop",
        "table": "events",
        "primary_key": "order_key" if mutable else "event_id",
        "time_column": "created_at",
        "mutable": mutable,
        "margin": f"{int(shape.margin.total_seconds())}s",
        "message": {
            "key": "order_key",
            "value": {"column": "payload"},
            "headers": {} if mutable else {"event-id": "event_id"},
        },
        "identity": (
            {"row": "order_key", "message": "key"}
            if mutable
            else {"row": "event_id", "message": "header:event-id"}
        ),
        "stale": "restate" if mutable else "events",
    }
    if method is Method.WINDOWS:
        # Random, so that the order of the rows says nothing.
        source["order_by"] = source["primary_key"]
    if method is Method.CONSUMED and not mutable:
        source["consumed"] = {"database": "shop", "table": "consumed", "column": "event_id"}
    return Stream.model_validate(
        {
            "name": "orders",
            "cluster": "main",
            "topic": stage.topic,
            "group": GROUP,
            "source": source,
        }
    )
