"""librdkafka by confluent-kafka: prefetches as deep as it does by default, commits by itself."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException

from tests.clients.python.words import ENDING, WORDS, handle, settings

consumer = Consumer(
    {
        "bootstrap.servers": WORDS["bootstrap"],
        "group.id": WORDS["group"],
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": int(WORDS["commit_ms"]),
        **settings(),
    }
)
consumer.subscribe([WORDS["topic"]])
while not ENDING.is_set():
    message = consumer.poll(0.2)
    if message is None:
        continue
    if (error := message.error()) is not None:
        if error.retriable() or error.code() < 0:
            print(error, flush=True)
            continue
        raise KafkaException(error)
    handle(message.partition(), message.offset())
consumer.close()
