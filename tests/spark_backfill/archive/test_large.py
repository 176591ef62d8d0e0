"""A gigabyte in one partition, of large messages that a batch makes small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from backlogctl.kafka.clients import make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive.verification import verify_archive
from backlogctl.spark_backfill.archive.writing import write_archive
from tests.conftest import MakeTopic
from tests.spark_backfill.archive import archiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE, COUNT = 100_000, 10_500


def test_a_gigabyte_in_one_partition(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    producer = make_producer(
        {"bootstrap.servers": kafka.bootstrap}, {"compression.type": "lz4", "linger.ms": 20}
    )
    line = json.dumps({"order_id": "o-00000001", "status": "paid", "amount": "12.50"})
    value = (line * (SIZE // len(line))).encode()
    for number in range(COUNT):
        producer.produce(name, value, b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0
    job = archiving.make_job(kafka.bootstrap, name, tmp_path / "archive", bytes_per_message=600.0)
    manifest = write_archive(spark, job)
    assert manifest.count == COUNT
    assert COUNT * len(value) > 10**9
    assert verify_archive(spark, job.location, manifest).is_good
