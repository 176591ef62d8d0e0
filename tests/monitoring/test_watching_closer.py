"""A stream whose retention is near is sampled each second between the rounds of `watch`."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from backlogctl.config import Config
from backlogctl.errors import ClusterUnreachable
from backlogctl.ledger import open_ledger
from backlogctl.monitoring.offsets.observation import Observation
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.watch import loop
from backlogctl.monitoring.watch.loop import Outages, watch_streams
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import publish, set_offsets_raw

INTERVAL = timedelta(seconds=6)


@pytest.mark.parametrize(("retention", "least", "most"), [("20 s", 5, 30), ("1 h", 2, 3)])
def test_a_stream_near_its_retention_is_sampled_each_second(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    unique: str,
    tmp_path: Path,
    retention: str,
    least: int,
    most: int,
) -> None:
    keep = {"20 s": 20, "1 h": 3600}[retention]
    # The short one is over within four intervals; nothing rolls the segment, so nothing is deleted.
    name = topic(config={"retention.ms": str(keep * 1000), "segment.ms": "600000"})
    properties = {"bootstrap.servers": kafka.bootstrap}
    group = f"g-{unique}"
    publish(properties, name, {0: 1})
    set_offsets_raw(properties, group, name, {0: 0})
    config = Config.model_validate(
        {
            "ledger": f"sqlite:///{tmp_path}/ledger.db",
            "clusters": {"main": {"bootstrap.servers": kafka.bootstrap}},
            "streams": {"orders": {"cluster": "main", "topic": name, "group": group}},
        }
    )
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    result = watch_streams(
        config, ledger, INTERVAL, threading.Event(), on_status=lambda _: None, rounds=2
    )
    assert result.error is None
    assert least <= len(ledger.samples.history("orders")) <= most


def test_one_time_out_is_enough_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten streams near their retention, of a cluster that is away, do not hold up the next round."""
    names = [f"s{number}" for number in range(10)]
    config = Config.model_validate(
        {
            "ledger": f"sqlite:///{tmp_path}/ledger.db",
            "clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}},
            "streams": {n: {"cluster": "main", "topic": n, "group": "g"} for n in names},
        }
    )
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    judging = loop._Judging(INTERVAL, INTERVAL)
    outages = Outages(lambda *_: None)
    watch = loop._StreamWatcher(config, ledger, INTERVAL, judging, outages, None, None)
    asked: list[str] = []

    def observe(stream: StreamLike, *_: object, **__: object) -> Observation:
        asked.append(stream.name)
        raise ClusterUnreachable("no broker answered", subject="cluster main")

    monkeypatch.setattr(watch, "_observe", observe)
    watch.near.update({name: config.streams[name] for name in names})
    watch.look_closer(threading.Event(), time.monotonic() - 1)
    assert asked == [], "the next round is due"
    watch.look_closer(threading.Event(), time.monotonic() + 60)
    assert (asked, watch.near) == (["s0"], {})
