"""kafka-python: commits by itself."""

from __future__ import annotations

from kafka import KafkaConsumer

from tests.clients.python.words import ENDING, WORDS, handle

consumer = KafkaConsumer(
    WORDS["topic"],
    bootstrap_servers=WORDS["bootstrap"],
    group_id=WORDS["group"],
    auto_offset_reset="earliest",
    auto_commit_interval_ms=int(WORDS["commit_ms"]),
)
while not ENDING.is_set():
    for batch in consumer.poll(timeout_ms=200).values():
        for message in batch:
            handle(message.partition, message.offset)
consumer.close()
