"""A slow consumer and a short retention: the loss is announced in time, and then it is exact."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from backlog.clock import utc_now
from backlog.config import Config
from backlog.embedded import EmbeddedKafka
from backlog.kafka.admin import committed_offsets, list_offsets
from backlog.ledger import open_ledger
from backlog.values import Cause, Certainty
from monitoring import looking
from monitoring.board import Board
from monitoring.page.app import make_page
from monitoring.status import GroupStatus
from monitoring.verdicts import Verdict
from monitoring.watcher import watch_streams
from tests.kafka_tools import properties_of, set_config, wait_until
from tests.monitoring.slow_shop import CHECK_SECONDS, SEGMENT_SECONDS, SlowShop, make_settings

RETENTION = 9.0
INTERVAL = timedelta(milliseconds=400)
WINDOW = timedelta(seconds=4)


def make_config(kafka: EmbeddedKafka, topic: str, group: str, directory: Path) -> Config:
    return Config.model_validate(
        {
            "ledger": f"sqlite:///{directory}/ledger.db",
            "clusters": {"main": {"bootstrap.servers": kafka.bootstrap}},
            "watch": {"interval": "400ms", "window": "4s", "horizon": "10m"},
            "streams": {"orders": {"cluster": "main", "topic": topic, "group": group}},
        }
    )


def test_a_loss_is_announced_with_its_time_and_then_told_with_its_range(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    # The loop has the timeline: weeks of samples are not read again at each look.
    patch = pytest.MonkeyPatch()
    patch.delattr(looking, "read_timeline")
    properties = properties_of(kafka.bootstrap)
    name = topic(partitions=1, config=make_settings(RETENTION))
    config = make_config(kafka, name, group, tmp_path)
    board, losing_board, stop = Board(), Board(), threading.Event()
    told: list[tuple[float, GroupStatus]] = []

    def take(status: GroupStatus) -> None:
        told.append((time.monotonic(), status))
        board.put_stream(status)

    shop = SlowShop(properties, name, group)
    with open_ledger(config.ledger_url()) as ledger:
        watching = threading.Thread(
            target=lambda: watch_streams(
                config,
                ledger,
                INTERVAL,
                stop,
                on_status=take,
                window=WINDOW,
                horizon=config.watch.horizon,
            )
        )
        shop.start()
        watching.start()
        try:
            wait_until(lambda: shop.overtaken_at is not None, 60, "retention passes the consumer")
            set_config(properties, name, {"retention.ms": "-1"})  # no more is lost from here on
            wait_until(lambda: told[-1][1].verdict is Verdict.LOST, 30, "the loss is told")
            wait_until(lambda: ledger.gaps.list("orders"), 10)
        finally:
            shop.stop()
            stop.set()
            watching.join(30)
            patch.undo()
        assert shop.overtaken_at is not None
        losing = [
            (at, s) for at, s in told if s.verdict is Verdict.LOSING and at < shop.overtaken_at
        ]
        assert losing, [str(status.verdict) for _, status in told]
        # Announced well before, each time with the time that is left, at the earliest.
        first_at, first = losing[0]
        assert shop.overtaken_at - first_at > RETENTION / 3
        for at, status in losing:
            assert status.seconds_to_loss is not None
            left = shop.overtaken_at - at
            slack = 0.2 * left + SEGMENT_SECONDS + CHECK_SECONDS
            assert abs(left - status.seconds_to_loss) <= slack, (left, status.sentence)
        assert "at the earliest" in first.sentence
        assert first.next_commands == ("backlogctl hold orders --for 6h",)
        page = TestClient(make_page(ledger, config, board=board))
        losing_board.put_stream(first)
        before = TestClient(make_page(ledger, config, board=losing_board)).get("/").text
        assert first.sentence in html.unescape(before)
        assert "backlogctl hold orders --for 6h" in before
        # Then exactly what is gone, as the broker has it.
        low = list_offsets(properties, name, [0], "earliest")[0]
        committed = committed_offsets(properties, group, name, [0])[0]
        assert committed is not None
        last = told[-1][1]
        assert (last.verdict, last.lost) == (Verdict.LOST, low - committed)
        gaps = [gap for gap in ledger.gaps.list("orders") if gap.end is not None]
        assert [(gap.cause, gap.certainty) for gap in gaps] == [
            (Cause.EXPIRED, Certainty.EXACT)
        ] * len(gaps)
        assert (min(gap.start or 0 for gap in gaps), max(gap.end or 0 for gap in gaps)) == (
            committed,
            low,
        )
        assert sum(gap.count or 0 for gap in gaps) == low - committed
        shown = html.unescape(page.get("/streams/orders").text)
        assert last.sentence in shown
        assert f"{committed:,}" in shown
        assert f"{low - 1:,}" in shown
        assert all(gap.first_time and gap.last_time and gap.last_time < utc_now() for gap in gaps)
