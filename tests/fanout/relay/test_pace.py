"""Relays that keep to a rate together, however many processes they are."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backlogctl.fanout.relay.interface import RelayEngine
from backlogctl.fanout.relay.pace import SharedPace
from backlogctl.fanout.relay.records import RecordBatch
from backlogctl.kafka.throttling import Throttling
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import check_copied, fill, pool_of, run
from tests.kit.transactions import limit_rates

QUOTA, SHARE = 50_000.0, 0.6
# More than the burst of ten seconds that brokers let through.
PARTITIONS, COUNT, SIZE = 3, 110, 2000


@pytest.mark.parametrize("share", [None, SHARE])
def test_relays_that_keep_to_a_share_are_never_throttled(
    make_world: MakeWorld, unique: str, engine: RelayEngine, tmp_path: Path, share: float | None
) -> None:
    here = make_world(partitions=PARTITIONS)
    fill(here.properties, here.source, dict.fromkeys(range(PARTITIONS), COUNT), size=SIZE)
    mine = limit_rates(here.properties, unique, producer_byte_rate=QUOTA)
    pace: dict[str, Any] = {}
    if share is not None:
        pace = {"bytes_per_second": share * QUOTA, "pace_file": str(tmp_path / "pace")}
    limited = replace(here, properties=mine)
    with (
        limited.guarded(**pace) as task,
        pool_of(task, here.ranges(), tmp_path, 2, engine.name) as pool,
    ):
        began = time.monotonic()
        run(pool)
        took = time.monotonic() - began
        found = sum((one.throttling for one in pool.positions.values()), Throttling())
    assert check_copied(here) == []
    assert (found.throttled > 0) is (share is None)
    if share is not None:
        # What is sent last, at most a partition's, is paid for by nobody.
        assert took >= (PARTITIONS - 1) * COUNT * SIZE / (share * QUOTA)


def test_what_one_takes_another_waits_for(tmp_path: Path) -> None:
    one, other = (SharedPace(tmp_path / "pace", 1000.0) for _ in range(2))
    assert one.take(5_000_000) == 0.0
    assert 4990 < other.take(1) <= 5000
    one.add(-5_000_000)  # it has sent nothing
    assert other.take(10_000_000) == 0.0
    other.add(10_000_000)
    assert 19_990 < one.take(1) <= 20_000


def test_a_batch_is_cut_by_its_size() -> None:
    class Sized:
        def __init__(self, offset: int, size: int) -> None:
            self._offset, self._size = offset, size

        def key(self) -> bytes:
            return b"k" * 50

        def value(self) -> bytes:
            return b"v" * (self._size - 153)

        def headers(self) -> list[tuple[str, bytes | None]]:
            return [("a", b"b"), ("c", None)]

        def offset(self) -> int:
            return self._offset

    messages: list[Any] = [Sized(offset, 200) for offset in (3, 5, 6, 9)]
    whole = RecordBatch(12, at_end=True, count=4, messages=messages)
    assert whole.cut(800) == (replace(whole, size=800), None)
    some, rest = whole.cut(500)
    assert (some.reached, some.at_end, some.count, some.size) == (6, False, 2, 400)
    assert rest == RecordBatch(12, at_end=True, count=2, messages=messages[2:])
    assert whole.cut(1)[0].count == 1
    empty = RecordBatch(7, at_end=True)
    assert empty.cut(1) == (empty, None)
