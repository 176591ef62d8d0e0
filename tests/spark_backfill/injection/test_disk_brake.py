"""An injection stops before it fills a broker's disks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import Paused
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlogctl.manifests import Manifest
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection.brakes import (
    MESSAGE_BYTES,
    DiskBrake,
    InjectionProgress,
    measure_room,
)
from backlogctl.values import Chunk

MIB = 2**20
PLAIN: Mapping[str, str] = {"bootstrap.servers": "127.0.0.1:1"}


def make_manifest(slots: int, chunks: int, count: int, size: int) -> Manifest:
    made = tuple(
        Chunk(slot, number, count, size, "a" * 64, f"m/{slot}/{number}", f"i/{slot}/{number}")
        for slot in range(slots)
        for number in range(chunks)
    )
    return Manifest("r-1", "orders", made, {})


def answer(*usable: int | None) -> LogDirs:
    return LogDirs(
        tuple(BrokerLogDirs(n, left, 100 * MIB, {0: 1, 1: 1}) for n, left in enumerate(usable))
    )


def look(left: int, *usable: int | None, manifest: Manifest) -> str:
    def read(_: Mapping[str, str], __: str, ___: Deadline) -> LogDirs:
        return answer(*usable)

    total = manifest.count
    return DiskBrake(PLAIN, "orders", manifest, read).look(
        InjectionProgress(injected=total - left, skipped=0, total=total)
    )


def test_what_is_left_and_what_comes_next() -> None:
    manifest = make_manifest(slots=2, chunks=10, count=100, size=MIB)
    chunk = MIB + 100 * MESSAGE_BYTES
    whole = measure_room(manifest, manifest.count, 1.0)
    assert (whole.left, whole.next) == (20 * chunk, 2 * chunk)
    assert measure_room(manifest, manifest.count // 20, 1.0).next == chunk, "all that is left"
    assert measure_room(manifest, manifest.count, 0.5).left == 10 * chunk


def test_it_stops_where_a_broker_has_no_space_for_the_next_chunks() -> None:
    manifest = make_manifest(slots=2, chunks=10, count=100, size=MIB)
    assert look(2000, 5 * MIB, 90 * MIB, manifest=manifest) == ""
    with pytest.raises(Paused, match="the disks of broker 1 have") as caught:
        look(2000, 90 * MIB, 2 * MIB, manifest=manifest)
    assert "goes on where it stopped" in caught.value.hint
    assert look(100, 90 * MIB, 2 * MIB, manifest=manifest) == "", "the last chunk fits"
    assert look(0, 0, manifest=manifest) == "", "nothing is left to send"


def test_what_brokers_do_not_tell_stops_nothing() -> None:
    manifest = make_manifest(slots=1, chunks=3, count=10, size=50 * MIB)
    assert look(30, None, manifest=manifest) == ""
    unknown = DiskBrake(PLAIN, "orders", manifest, lambda *_: LogDirs(None, "not granted"))
    assert unknown.look(InjectionProgress(injected=0, skipped=0, total=30)) == ""


def test_a_real_broker_whose_disk_is_nearly_full(tmp_path: Path) -> None:
    manifest = make_manifest(slots=1, chunks=4, count=1000, size=16 * MIB)
    begin = InjectionProgress(injected=0, skipped=0, total=manifest.count)
    with EmbeddedKafka.start(tmp_path, disk_bytes=96 * MIB) as kafka:
        client = kafka.client_properties
        create_topic(client, "orders", partitions=1, replication=1)
        assert DiskBrake(client, "orders", manifest).look(begin) == ""
        producer = make_producer(client, {})
        for _ in range(165):
            producer.produce("orders", secrets.token_bytes(MIB // 2))
            producer.poll(0)
        assert producer.flush(60) == 0
        with pytest.raises(Paused, match="the next chunks may take"):
            DiskBrake(client, "orders", manifest).look(begin)
