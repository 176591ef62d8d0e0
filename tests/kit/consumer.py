"""A consumer that tells what it handled: `key sequence topic partition time_ns` lines in ORDER_LOG.

A line is written before the offset is committed. A file `ORDER_LOG.<role>` holds messages a second
for the consumers of that role; it is looked at all the time, and 0 handles nothing. Where there is
a file `ORDER_LOG.autocommit` the client commits by itself, every 5 s. A file `ORDER_LOG.<role>.wrong`
is what is wrong with the consumers of that role: variables, as JSON, that they put in the place of
those they were given; LOGIN are more properties, as JSON; `CRASH` is what they say before they end.
Until a file of the name in LATE is there, which it makes when it is ended, the last message handled is
never committed.
With STATIC it is a static member, by its index.
With NO_EPOCH its commits have no leader epoch, as offsets that an application names itself.
With NOTE_BYTES a line is `hash partition offset`: the hash is that of all of the message.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

_LOG = os.environ["ORDER_LOG"]
_SPEED = Path(f"{_LOG}.{os.environ['BACKLOG_ROLE']}")
_AUTOCOMMIT = Path(f"{_LOG}.autocommit")
_WRONG = Path(f"{_SPEED}.wrong")
_NOTES_BYTES = "NOTE_BYTES" in os.environ
_AT_ONCE = 100


def describe(message: Message, partition: int, offset: int) -> bytes:
    """Its line."""
    if _NOTES_BYTES:
        from tests.crash.offload.traffic import Content

        return b"%s %d %d\n" % (Content.of_message(message).hash.encode(), partition, offset)
    words = (message.key() or b"", message.value() or b"", (message.topic() or "").encode())
    return b"%s %s %s %d %d\n" % (*words, partition, time.time_ns())


def main() -> None:
    """Reads, writes lines, commits; until SIGTERM."""
    if _WRONG.exists():
        os.environ.update(json.loads(_WRONG.read_text()))
    if "CRASH" in os.environ:
        time.sleep(1.0)  # it has settled by then, as a service that connects first
        sys.exit(os.environ["CRASH"])
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
    log = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    manner = os.environ.get("MANNER")
    modern = manner == "consumer"  # its timeouts are the broker's
    automatic = _AUTOCOMMIT.exists()
    timeouts = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
    index = f"{os.environ['BACKLOG_ROLE']}-{os.environ.get('BACKLOG_INDEX')}"
    static = {"group.instance.id": index} if "STATIC" in os.environ else {}
    consumer = Consumer(
        {
            **({"group.protocol": "consumer"} if modern else timeouts),
            "bootstrap.servers": os.environ["BACKLOG_BOOTSTRAP_SERVERS"],
            **json.loads(os.environ.get("LOGIN", "{}")),
            "group.id": os.environ["BACKLOG_GROUP"],
            "client.id": f"order-service-{os.environ['BACKLOG_ROLE']}",
            **static,
            "auto.offset.reset": os.environ.get("RESET", "earliest"),
            "enable.auto.commit": automatic,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "log_level": 3,
        }
    )
    done: dict[int, TopicPartition] = {}
    late = Path(os.environ["LATE"]) if "LATE" in os.environ else None
    behind = 1 if late is not None and not late.exists() else 0

    def commit() -> None:
        offsets = list(done.values())
        done.clear()
        if offsets and not automatic:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                print(f"not committed: {error}", flush=True)  # read again by who has it now

    topic = os.environ["BACKLOG_TOPIC"]
    if manner == "assign":
        found = consumer.list_topics(topic, 20).topics[topic].partitions
        consumer.assign(consumer.committed([TopicPartition(topic, number) for number in found], 20))
    else:
        consumer.subscribe([topic], on_revoke=lambda *_: commit())
    while not ending:
        try:
            speed = float(_SPEED.read_text() or 0)
        except FileNotFoundError:
            speed = 1e9
        messages = consumer.consume(min(_AT_ONCE, max(1, int(speed / 10))), 0.05) if speed else []
        if not speed:
            time.sleep(0.05)
        lines: list[bytes] = []
        for message in messages:
            if message.error() is not None:
                print(message.error(), flush=True)
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            lines.append(describe(message, partition, offset))
            # With the leader's epoch, as most clients' own commits have it.
            epoch = None if "NO_EPOCH" in os.environ else message.leader_epoch()
            at = TopicPartition(topic, partition, offset + 1 - behind)
            if epoch is not None:
                at = TopicPartition(topic, partition, offset + 1 - behind, leader_epoch=epoch)
            done[partition] = at
        if lines:
            os.write(log, b"".join(lines))
            commit()
            time.sleep(len(lines) / speed)
    consumer.close()
    if late is not None:
        late.touch()


if __name__ == "__main__":
    main()
