"""Plans of a simulated stream by real services, and what the best evidence promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import psycopg
import pyarrow.parquet as pq
from confluent_kafka import KafkaError, Message, Producer

from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.kinds.rebuild.losses import date_edges, tighten_times
from backlogctl.spark_backfill.rebuild import stage_rebuild
from backlogctl.spark_backfill.request import RebuildRequest
from tests.accuracy.scenarios import (
    BEGIN,
    EXACT,
    WITHIN,
    ZONE,
    Judgement,
    judge,
    read_listed,
    read_staged,
)
from tests.accuracy.traffic import Traffic, to_time
from tests.accuracy.watching import GROUP, Sampling, Watched, find_begin
from tests.kit.kafka import move_log_start, properties_of
from tests.kit.services import Postgres
from tests.spark_backfill import world
from tests.spark_backfill.world import await_decided

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_EVENTS = """
CREATE TABLE events (event_id uuid PRIMARY KEY, order_key text, payload bytea NOT NULL,
                     created_at timestamptz NOT NULL)
"""
_ORDERS = """
CREATE TABLE events (order_key text PRIMARY KEY, payload bytea NOT NULL,
                     created_at timestamptz NOT NULL)
"""
_BEGIN_MS = int(BEGIN.timestamp()) * 1000
_Note = Callable[[int, KafkaError | None, Message], None]
_CONSUMED = "CREATE TABLE consumed (event_id uuid PRIMARY KEY)"


@dataclass(frozen=True)
class Stage:
    """Where the story took place."""

    traffic: Traffic
    bootstrap: str
    topic: str
    topic_id: str
    topic_config: dict[str, str]
    database_url: str


def set_stage(traffic: Traffic, bootstrap: str, postgres: Postgres, name: str) -> Stage:
    """A topic and a database of their own, as they are at the end of the story."""
    admin = make_admin(properties_of(bootstrap))
    config = {"retention.ms": "-1"}
    create_topic(
        admin, name, partitions=len(traffic.logs), replication=1, config=config,
        deadline=Deadline(60),
    )  # fmt: skip
    _publish(traffic, bootstrap, name)
    properties = properties_of(bootstrap)
    lows = {n: traffic.find_low(n, traffic.end) for n in range(len(traffic.logs))}
    move_log_start(properties, name, lows)
    assert list_offsets(properties, name, lows, "earliest") == lows
    database = name.replace("-", "_")
    postgres.execute(f"CREATE DATABASE {database}")
    url = postgres.url(database)
    _fill_tables(traffic, url.replace("+psycopg", ""))
    info = describe_topic(admin, name)
    return Stage(traffic, bootstrap, name, info.topic_id, dict(info.config), url)


def _publish(traffic: Traffic, bootstrap: str, topic: str) -> None:
    """Every message at the offset that the simulation gave it, control records in between."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 5,
    }
    size = traffic.scenario.transaction
    producer = Producer({**settings, "transactional.id": f"accuracy-{topic}"} if size else settings)
    if size:
        producer.init_transactions(60)
    arrived: dict[int, tuple[int, int]] = {}

    def note(event: int, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        arrived[event] = (partition, offset)

    for batch in _cut_batches(traffic):
        if size:
            producer.begin_transaction()
        for event in batch:
            _send(producer, traffic, topic, event, note)
        if size:
            producer.commit_transaction(60)
    assert producer.flush(120) == 0
    await_decided(bootstrap, topic, len(traffic.logs))
    expected = {
        int(log.event[offset]): (number, int(offset))
        for number, log in enumerate(traffic.logs)
        for offset in log.messages
    }
    assert arrived == expected, "the log is not the one that was simulated"


def _cut_batches(traffic: Traffic) -> Iterator[list[int]]:
    sent = traffic.events.sent
    order = np.argsort(sent, kind="stable")
    order = order[sent[order] >= 0]
    size = traffic.scenario.transaction or len(order)
    for begin in range(0, len(order), size):
        yield order[begin : begin + size].tolist()


def _send(producer: Producer, traffic: Traffic, topic: str, event: int, note: _Note) -> None:
    events = traffic.events
    key = events.key_of(event)
    while True:
        try:
            producer.produce(
                topic,
                events.payload_of(event),
                None if key is None else key.encode(),
                int(events.partition[event]),
                timestamp=_BEGIN_MS + int(events.sent[event]) // 1000,
                headers=_list_headers(traffic, event),
                on_delivery=partial(note, event),
            )
        except BufferError:
            producer.poll(0.05)
            continue
        producer.poll(0)
        return


def _list_headers(traffic: Traffic, event: int) -> list[tuple[str, str | bytes | None]]:
    own = traffic.events.ids[event]
    headers: list[tuple[str, str | bytes | None]] = [("event-id", own.encode())]
    if traffic.scenario.traced:
        headers.append(("traceparent", f"00-{own.replace('-', '')}-00f067aa0ba902b7-01".encode()))
    return headers


def _fill_tables(traffic: Traffic, url: str) -> None:
    """Rows as they are at the end, and the consumer's own table of what it handled."""
    events = traffic.events
    mutable = traffic.scenario.mutable
    rows: Iterable[int] = np.flatnonzero(~events.deleted).tolist()
    if mutable:
        # The last change of each order.
        rows = {int(events.key[row]): row for row in rows}.values()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(_ORDERS if mutable else _EVENTS)
        if traffic.scenario.wall_clock:
            cursor.execute("ALTER TABLE events ALTER created_at TYPE timestamp")
        names = "order_key, payload, created_at" + ("" if mutable else ", event_id")
        with cursor.copy(f"COPY events ({names}) FROM STDIN") as copy:
            for row in rows:
                at = to_time(int(events.created[row]))
                if traffic.scenario.wall_clock:
                    at = at.astimezone(ZoneInfo(ZONE)).replace(tzinfo=None)
                values = (events.key_of(row), events.payload_of(row), at)
                copy.write_row(values if mutable else (*values, events.ids[row]))
        cursor.execute("CREATE INDEX ON events (created_at)")
        if not mutable:
            cursor.execute(_CONSUMED)
            with cursor.copy("COPY consumed (event_id) FROM STDIN") as copy:
                for event in list_handled(traffic):
                    copy.write_row((events.ids[event],))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def list_handled(traffic: Traffic) -> list[int]:
    """Events whose message the consumer has handled."""
    handled = []
    for number, log in enumerate(traffic.logs):
        events = log.event[: traffic.find_committed(number, traffic.end)]
        handled += events[events >= 0].tolist()
    return handled


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
        """`exact` and `within` are promises: what may be wrong is listed."""
        if self.verdict == WITHIN:
            return not self.judgement.unlisted
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
    zone = {"timezone": ZONE} if stage.traffic.scenario.wall_clock else {}
    gaps = tighten_times(watched.gaps, watched.history)
    return RebuildRequest(
        recovery_id="r-20251026-0001",
        stream=make_stream(stage, method),
        sources={"shop": world.make_source(stage.database_url, **zone)},
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


# With bookmarks of a `watch` that always ran: at most this share of the lost messages is missed, and
# at most as many are doubled.
SHARES: Mapping[str, float] = {
    "tight": 0.0,
    "one": 0.0,
    "loose": 0.0005,
    "long": 0.0005,
    "control": 0.0001,
}
# One row at an edge is more than any share of a small loss.
SMALL = 10_000
FEW = 2


def find_broken(results: Iterable[Measured]) -> list[str]:
    """What does not hold, a sentence each."""
    broken = []
    for item in results:
        found = item.judgement
        place = f"{item.scenario}, sampled {item.sampling}, {item.method}"
        if not item.is_honest:
            broken.append(f"{place}: says {item.verdict}, and is not: {found}")
        if item.verdict == REFUSED:
            broken.append(f"{place}: refused: {'; '.join(item.reasons)}")
        if found.altered:
            broken.append(f"{place}: {found.altered} messages are not what was sent")
        share = SHARES.get(item.scenario)
        if share is None or item.method is not Method.BOOKMARKS:
            continue
        if item.sampling is Sampling.ALWAYS:
            most = int(found.lost * share)
            if share and found.lost < SMALL:
                most = max(most, FEW)
            for name, count in (("missed", found.missed), ("doubled", found.doubled)):
                if count > most:
                    broken.append(f"{place}: {count} {name}, of {found.lost} at most {most}")
    return broken
