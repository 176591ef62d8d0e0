"""Id lists of committed chunks, made again of the messages alone (fault 97); no Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from backlogctl.manifests import name_ids, name_messages, write_chunk
from backlogctl.spark_backfill.injection.id_lists import place_chunks, read_staged_ids
from backlogctl.spark_backfill.injection.job import InjectionJob
from backlogctl.spark_backfill.injection.ledger_topic import CommittedChunk, read_committed_chunks
from backlogctl.spark_backfill.injection.producing import SlotProducer
from tests.crash.scenario import make_table
from tests.kit.kafka import move_log_start
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import inject_here

SECOND = "r-20261121-0002"


def read_records(job: InjectionJob) -> list[CommittedChunk]:
    return read_committed_chunks(job.properties, job.ledger, job.topic)


def abort_some(job: InjectionJob) -> None:
    """Messages with our headers in a transaction that never commits."""
    producer = SlotProducer(job.properties, job.topic, f"aborted-{job.topic}", 15_000, 1_000_000)
    producer.init()
    producer.begin()
    producer.produce(0, make_table(job.topic, 0, ["x", "y"], job.recovery_id), None)
    producer.flush()
    producer.abort()
    producer.drop()


def test_lists_are_those_that_were_staged(scenario: MakeScenario) -> None:
    """Two recoveries one after another in the same partitions, and what was aborted between."""
    first = scenario(slots=2, chunks=3, messages=20).job
    inject_here(first)
    abort_some(first)
    names = {"topic": first.topic, "ledger": first.ledger.topic, "recovery_id": SECOND}
    second = scenario(slots=2, chunks=2, messages=30, **names).job
    inject_here(second)
    records = read_records(first)
    placed = place_chunks(first.properties, first.topic, records)
    assert len(placed) == len(records) == 10
    for record, place in placed.items():
        job = first if record.recovery == first.recovery_id else second
        kept = pq.read_table(job.directory / name_ids(record.slot, record.chunk))
        assert place.ids.equals(kept)
        assert place.last_offset - place.first_offset == record.count - 1


def test_what_retention_took_a_part_of_is_left_out(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=3, messages=20).job
    inject_here(job)
    move_log_start(job.properties, job.topic, {0: 1})
    placed = place_chunks(job.properties, job.topic, read_records(job))
    assert sorted(record.chunk for record in placed) == [1, 2]


def test_other_messages_are_not_taken_for_a_chunk(scenario: MakeScenario) -> None:
    """As many as the chunk has, of its recovery and in its place: the hash says that it is not."""
    job = scenario(slots=1, chunks=2, messages=20).job
    inject_here(job)
    first, second = read_records(job)
    wrong = replace(second, sha256="0" * 64)
    assert set(place_chunks(job.properties, job.topic, [first, wrong])) == {first}


@pytest.mark.parametrize("ruin", [False, True])
def test_staged_messages_tell_their_ids_if_they_are_those_of_the_record(
    tmp_path: Path, ruin: bool
) -> None:
    chunk = write_chunk(tmp_path, 1, 2, make_table("t", 1, ["a", "b"], SECOND))
    record = CommittedChunk(SECOND, "t", 1, 2, "", chunk.sha256, chunk.count, "", 0, 0)
    if ruin:
        (tmp_path / name_messages(1, 2)).write_bytes(b"ruined")
    ids = read_staged_ids(tmp_path, record)
    kept = pq.read_table(tmp_path / name_ids(1, 2))
    assert ids is None if ruin else ids is not None and ids.equals(kept)
