"""A live consumer that real log starts overtake: what it lost, and what the gaps cover."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.kafka.clients import make_admin
from backlogctl.ledger import open_ledger
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.monitoring.watch.look import WINDOW, look_at_stream
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Certainty
from tests.conftest import MakeTopic
from tests.kafka_tools import StreamStub, join, move_log_start, properties_of, publish

PER_SECOND = 20
STEP = 12_000  # what retention deletes at once


class Watch:
    window = WINDOW
    horizon = timedelta(hours=24)


@pytest.mark.timeout(300)
def test_fault_76_what_a_live_consumer_lost_is_in_bounded_gaps(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=1)
    small: dict[str, Any] = {"batch.num.messages": "20"}  # or one fetch holds all
    publish(properties, name, {0: 40_000}, **small)
    stream, admin = StreamStub(name, group), make_admin(properties)
    read: list[int] = []
    stop = threading.Event()

    def consume() -> None:
        consumer = join(
            properties,
            group,
            name,
            enable_auto_commit="true",
            auto_commit_interval_ms="1000",
            enable_auto_offset_store="true",
            queued_min_messages="1",
            queued_max_messages_kbytes="1",
            fetch_message_max_bytes="2000",
        )
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error() and message.offset() is not None:
                read.append(message.offset() or 0)
                time.sleep(1 / PER_SECOND)
        consumer.close()

    reader = threading.Thread(target=consume)
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        reader.start()
        try:
            marks = None
            began = time.monotonic()
            steps = [STEP, 2 * STEP, 3 * STEP]
            while time.monotonic() < began + 52:
                seen = observe_stream(ledger, stream, admin, marks=marks, settle=False)
                marks = seen.marks
                if steps and time.monotonic() > began + 30 + 7 * (3 - len(steps)):
                    move_log_start(properties, name, {0: steps.pop(0)})
                time.sleep(1)
        finally:
            stop.set()
            reader.join(60)
        lost = set(range(min(read), max(read))) - set(read)
        gaps = ledger.gaps.list(stream=stream.name)
        covered = {at for gap in gaps for at in range(gap.start or 0, gap.end or 0)}
        for gap in gaps:
            print(gap.certainty, gap.start, gap.end, gap.reason)
        print(f"lost {len(lost)}, covered {len(lost & covered)}, read {len(read)}")
        assert len(lost) > STEP
        assert lost <= covered
        ranged = [gap for gap in gaps if gap.end is not None]
        assert {gap.certainty for gap in ranged} == {Certainty.BOUNDED}
        look = look_at_stream(ledger, stream, properties, Watch())
        assert (look.status.lost or 0) >= len(lost)
