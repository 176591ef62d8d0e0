"""Faults 45 and 46 at random: senders are killed by SIGKILL at chance points, and an oracle counts.

Every committed message is in the topic at least once with one and the same id, the first of each
key's messages arrive in their order, and no rolled-back one ever arrives.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from backlog.crashpoints import VARIABLE
from tests.conftest import MakeTopic
from tests.delivery.outbox.shop import Shop, read_id

POINTS = (
    "p8.2.claim.before",
    "p8.2.claim.after",
    "p8.3.produced",
    "p8.3.acknowledged",
    "p8.4.mark.before",
    "p8.4.mark.after",
)
_PROGRAM = """
import sys
from datetime import timedelta
from delivery.outbox import OutboxSender, Settings
settings = Settings(
    scan_every=timedelta(seconds=0.05), lease=timedelta(seconds=0.6),
    delivery_timeout=timedelta(seconds=0.3), most=12, most_of_key=5, longest_interval=timedelta(seconds=0.2),
    first_interval=timedelta(seconds=0.1),
)
OutboxSender(sys.argv[1], {"bootstrap.servers": sys.argv[2]}, settings).run()
"""


def start_sender(shop: Shop, crash_at: str) -> subprocess.Popen[bytes]:
    """A sender in a process group of its own, which dies at that point."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, shop.url, shop.bootstrap],
        env={**os.environ, VARIABLE: crash_at},
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )


@pytest.mark.timeout(250)
def test_fault_45_46_senders_killed_at_random_lose_nothing(shop: Shop, topic: MakeTopic) -> None:
    name = topic(3)
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    committed: dict[str, tuple[str, int]] = {}
    undone: set[str] = set()
    place = 0

    def write() -> None:
        nonlocal place
        with Session(shop.engine) as session:
            for _ in range(chance.randrange(1, 6)):
                key = f"k{chance.randrange(6)}"
                given = shop.outbox.add(session, topic=name, key=key, value=str(place))
                session.flush()
                if chance.random() < 0.2:
                    undone.add(given)
                    session.rollback()
                    break
                committed[given] = (key, place)
                place += 1
                session.commit()

    points = chance.sample(POINTS, len(POINTS))[: 2 if shop.database.is_sqlite else 3]
    for at in range(0, len(points), 2):
        # Two at a time: what one leaves behind the other takes over.
        for _ in range(15):
            write()
        senders = [
            start_sender(shop, f"{point}:{chance.randrange(1, 4)}") for point in points[at : at + 2]
        ]
        # Until both have come to their point.
        while any(sender.poll() is None for sender in senders):
            write()
            time.sleep(0.05)
        assert {sender.returncode for sender in senders} == {-signal.SIGKILL}
    with shop.sending():
        shop.await_sent(len(committed))

    found: dict[str, tuple[str, int]] = {}
    for message in shop.read(name, 3):
        id_ = read_id(message)
        assert id_ in committed, f"rolled back: {id_ in undone}, seed {seed}"
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        first = found.setdefault(id_, (key.decode(), int(value)))
        assert first == committed[id_] == (key.decode(), int(value)), f"seed {seed}"
    assert found.keys() == committed.keys(), f"seed {seed}"
    by_key: dict[str, list[int]] = {}
    for key_text, number in found.values():
        by_key.setdefault(key_text, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), f"seed {seed}"
