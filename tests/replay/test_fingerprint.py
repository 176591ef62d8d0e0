"""What of a stream's configuration makes an approved plan stale, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from backlogctl.config import Config, Stream
from backlogctl.replay.consumers.fleet import fingerprint_with_consumers, keep_waits
from backlogctl.replay.engine.guards import fingerprint_stream
from backlogctl.replay.engine.plan import find_changes
from backlogctl.replay.kinds.expand import planning as expand
from backlogctl.replay.kinds.rebuild.planning import FINGERPRINT

Fingerprint = Callable[[Config, Stream], Mapping[str, Any]]


def fingerprint_expansion(config: Config, stream: Stream) -> dict[str, Any]:
    return fingerprint_with_consumers(config, stream, expand.FINGERPRINT)


KINDS: Mapping[str, Fingerprint] = {
    "rebuild": lambda _, stream: fingerprint_stream(stream, FINGERPRINT),
    "expand": fingerprint_expansion,
}
TEXT = """
clusters: {main: {bootstrap.servers: "localhost:9092"}}
sources: {shop: {url: "sqlite:///shop.db"}}
streams:
  orders:
    cluster: main
    topic: orders
    group: service
    consumers: {launcher: process, command: [python, -m, service], replicas: 2}
    source:
      database: shop
      table: orders
      primary_key: [order_id]
      time_column: updated_at
      message: {key: order_id, value: {json: [order_id]}}
      identity: {row: order_id, message: key}
      mutable: false
      stale: restate
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.from_text(TEXT, tmp_path)


class NewerStream(Stream):
    """A stream as a newer program knows it: with a section and a switch that this one lacks."""

    archive: dict[str, str] = {"dir": "s3a://bucket"}  # noqa: RUF012 - pydantic copies it
    edge: str | None = None


@pytest.mark.parametrize("fingerprint", KINDS.values(), ids=KINDS)
def test_a_new_section_makes_no_approved_plan_stale(
    config: Config, fingerprint: Fingerprint
) -> None:
    stream = config.streams["orders"]
    newer = NewerStream.model_validate(stream.model_dump())
    planned = fingerprint(config, stream)
    assert planned
    assert find_changes(planned, fingerprint(config, newer)) == []


@pytest.mark.parametrize("fingerprint", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["off_peak", "approval", "auto_plan", "limits"])
def test_what_only_brakes_or_admits_makes_none_stale(
    config: Config, fingerprint: Fingerprint, name: str
) -> None:
    """Those take effect from the configuration: see test_approval.py."""
    assert name not in fingerprint(config, config.streams["orders"])


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("rebuild", {"topic": "other"}, ["topic"]),
        ("rebuild", {"partitioner": "crc32"}, ["partitioner"]),
        ("rebuild", {"consumers": None, "expand": {"factor": 3}}, []),
        ("expand", {"group": "other"}, ["group"]),
        ("expand", {"expand": {"factor": 3}}, ["expand.factor"]),
        ("expand", {"source": None}, []),
        ("expand", {"consumers": None}, ["consumers"]),
    ],
)
def test_what_the_plan_was_computed_from_makes_it_stale(
    config: Config, kind: str, changes: dict[str, Any], told: list[str]
) -> None:
    stream = config.streams["orders"]
    data = {**stream.model_dump(), **changes}
    if isinstance(changes.get("expand"), dict):
        data["expand"] = {**stream.expand.model_dump(), **changes["expand"]}
    planned = KINDS[kind](config, stream)
    now = KINDS[kind](config, Stream.model_validate(data))
    assert find_changes(planned, now) == told


def test_how_long_is_waited_for_consumers_makes_no_expansion_stale(config: Config) -> None:
    """It may be changed while one is open: it decides no message."""
    stream = config.streams["orders"]
    planned = fingerprint_expansion(config, stream)
    data = stream.model_dump()
    data["consumers"] |= {"stop_within": "5m", "command_within": "1m"}
    later = Stream.model_validate(data)
    assert find_changes(planned, keep_waits(planned, fingerprint_expansion(config, later))) == []
    data["consumers"]["replicas"] = 7
    later = Stream.model_validate(data)
    told = find_changes(planned, keep_waits(planned, fingerprint_expansion(config, later)))
    assert told == ["consumers.replicas"]


def test_a_key_that_the_plan_does_not_know_counts_where_it_is_set() -> None:
    planned = {"source": {"table": "orders", "margin": 600}}
    assert find_changes(planned, {"source": {"table": "orders", "margin": 600, "edge": None}}) == []
    assert find_changes(
        planned, {"source": {"table": "orders", "margin": 600, "edge": "include"}}
    ) == ["source.edge"]
    assert find_changes(planned, {"source": {"table": "orders"}}) == ["source.margin"]
    assert find_changes({"source": None}, {"source": {"table": "orders"}}) == ["source"]


# Only brakes or admits a run, or is another kind's.
BRAKES = {
    "approval",
    "audits",
    "sequence",
    "auto_plan",
    "deliver",
    "limits",
    "mask",
    "off_peak",
    "redrive",
}
ELSEWHERE = {"rebuild": BRAKES | {"consumers", "expand"}, "expand": BRAKES | {"name", "source"}}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_stream_is_on_one_of_the_lists(config: Config, kind: str) -> None:
    """A new key of a stream: does a plan of this kind depend on it?"""
    listed = set(KINDS[kind](config, config.streams["orders"]))
    assert listed | ELSEWHERE[kind] == set(Stream.model_fields)
    assert not listed & ELSEWHERE[kind]
