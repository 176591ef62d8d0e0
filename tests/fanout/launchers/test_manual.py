"""People as launchers: what they are told, and consumers that never show as members."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import TopicPartition

from backlogctl.fanout.launchers import Fleet, ManualLauncher, manual
from backlogctl.kafka.clients import make_consumer
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.fanout.launchers.fleets import make_fleet, no_stop
from tests.kafka_tools import properties_of


class AssignedConsumer:
    """Takes its partition by itself and commits now and then; the group shows no member."""

    def __init__(self, fleet: Fleet) -> None:
        self.last = 0.0
        settings = {"group.id": fleet.group, "auto.offset.reset": "earliest"}
        self._consumer = make_consumer(properties_of(fleet.bootstrap_servers), settings)
        self._place = TopicPartition(fleet.topic, 0, 0)
        self._consumer.assign([self._place])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._commit)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _commit(self) -> None:
        while not self._ending.wait(0.2):
            self._place.offset += 1
            self.last = time.monotonic()
            self._consumer.commit(offsets=[self._place], asynchronous=False)
        self._consumer.close()


@pytest.fixture
def fleet(kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path) -> Fleet:
    return make_fleet(
        tmp_path, topic=topic(partitions=2), group=group, bootstrap_servers=kafka.bootstrap
    )


def test_consumers_that_never_show_as_members(fleet: Fleet) -> None:
    consumer = AssignedConsumer(fleet)
    errands: list[threading.Timer] = []
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        do = consumer.start if text.startswith("Start") else consumer.end
        errands.append(threading.Timer(1.0, do))
        errands[-1].start()

    launcher = ManualLauncher(properties_of(fleet.bootstrap_servers), hear)
    launcher.scale(fleet, 3, no_stop)
    assert consumer.last > 0
    launcher.stop(fleet, no_stop)
    assert time.monotonic() - consumer.last > 5
    for errand in errands:
        errand.join()
    assert len(said) == 2
    for text in (fleet.topic, fleet.group, fleet.bootstrap_servers):
        assert all(text in sentence for sentence in said)
    assert said[0].startswith("Start 3 consumers")
    assert "3 members" in said[0]
    assert said[1].startswith("Stop every consumer")


def test_it_looks_twice_a_second_and_never_gives_up_by_itself(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    looks: list[float] = []  # seconds slept until then; what the machine takes does not count

    class Enough(Exception):
        pass

    def look() -> None:
        looks.append(sum(slept))
        if looks[-1] > 30:
            raise Enough

    monkeypatch.setattr(manual, "time", SimpleNamespace(sleep=slept.append))
    with pytest.raises(Enough):
        ManualLauncher(properties_of(fleet.bootstrap_servers), lambda _: None).scale(fleet, 1, look)
    assert max(b - a for a, b in itertools.pairwise(looks)) <= 0.5


def test_it_asks_once_for_each_thing(fleet: Fleet) -> None:
    """The same request, made again while people are at it, is waited for without another word.

    The next run says it again: somebody else may look at that.
    """
    said: list[str] = []

    class Later(Exception):
        pass

    def interrupt(after: int) -> Callable[[], None]:
        left = itertools.count(after, -1)

        def look() -> None:
            if next(left) == 0:
                raise Later

        return look

    for _ in range(2):  # a launcher of each run
        launcher = ManualLauncher(properties_of(fleet.bootstrap_servers), said.append)
        for _ in range(2):
            with pytest.raises(Later):
                launcher.scale(fleet, 2, interrupt(5))
        with pytest.raises(Later):
            launcher.scale(fleet, 3, interrupt(5))
    assert [text.split(" of group")[0] for text in said] == [
        "Start 2 consumers",
        "Start 3 consumers",
    ] * 2


def test_nobody_is_asked_to_stop_what_does_not_run(fleet: Fleet) -> None:
    said: list[str] = []
    launcher = ManualLauncher(properties_of(fleet.bootstrap_servers), said.append)
    launcher.stop(fleet, no_stop)
    launcher.stop(fleet, no_stop)
    assert len(said) == 1
