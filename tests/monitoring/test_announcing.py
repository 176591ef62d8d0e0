"""A slow consumer and a short retention: the loss is announced in time, and then it is exact."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from backlogctl.clock import utc_now
from backlogctl.config import Config
from backlogctl.kafka.admin import committed_offsets, list_offsets
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from backlogctl.monitoring.watch import look
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.web.page.app import make_page
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Cause, Certainty, Gap
from tests.kafka_tools import properties_of, set_config, wait_until
from tests.monitoring.slow_shop import CHECK_SECONDS, SEGMENT_SECONDS, SlowShop, make_settings

RETENTION = 9.0
INTERVAL = timedelta(milliseconds=400)
WINDOW = timedelta(seconds=4)
EVEN = 1.5  # seconds; with longer pauses the rates are not
TRIES = 3


def make_config(kafka: EmbeddedKafka, topic: str, group: str, directory: Path) -> Config:
    return Config.model_validate(
        {
            "ledger": f"sqlite:///{directory}/ledger.db",
            "clusters": {"main": {"bootstrap.servers": kafka.bootstrap}},
            "watch": {"interval": "400ms", "window": "4s", "horizon": "10m"},
            "streams": {"orders": {"cluster": "main", "topic": topic, "group": group}},
        }
    )


@dataclass
class Story:
    """What was told of a shop whose consumer was overtaken, and when."""

    config: Config
    ledger: Ledger
    shop: SlowShop
    board: Board = field(default_factory=Board)
    told: list[tuple[datetime, GroupStatus]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def take(self, status: GroupStatus) -> None:
        self.told.append((utc_now(), status))
        self.board.put_stream(status)

    def watch(self) -> None:
        watch_streams(
            self.config,
            self.ledger,
            INTERVAL,
            self.stop,
            on_status=self.take,
            window=WINDOW,
            horizon=self.config.watch.horizon,
        )

    def list_gaps(self) -> list[Gap]:
        return [gap for gap in self.ledger.gaps.list("orders") if gap.end is not None]

    def read_broker(self) -> tuple[int, int | None]:
        """The log start, and what is committed."""
        shop = self.shop
        low = list_offsets(shop.properties, shop.topic, [0], "earliest")[0]
        return low, committed_offsets(shop.properties, shop.group, shop.topic, [0])[0]

    def is_told(self) -> bool:
        """The loss, as the broker has it, by the newest status and by the ledger."""
        low, committed = self.read_broker()
        status, written = self.told[-1][1], sum(gap.count or 0 for gap in self.list_gaps())
        return (
            status.verdict is Verdict.LOST and status.lost == written == low - (committed or 0) > 0
        )

    def happen(self) -> None:
        """From the first order to the loss that is written down."""
        watching = threading.Thread(target=self.watch)
        self.shop.start()
        watching.start()
        try:
            wait_until(
                lambda: self.shop.overtaken_at is not None, what="retention passes the consumer"
            )
            # No more is lost from here on.
            set_config(self.shop.properties, self.shop.topic, {"retention.ms": "-1"})
            wait_until(self.is_told, what="the loss is told and written down")
        finally:
            self.shop.stop()
            self.stop.set()
            watching.join(60)
        print(f"pauses of {self.shop.pause:.2f} s, checks every {self.shop.between_checks:.2f} s")


@pytest.mark.timeout(600)
def test_a_loss_is_announced_with_its_time_and_then_told_with_its_range(
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The loop has the timeline: weeks of samples are not read again at each look.
    with monkeypatch.context() as patch, ExitStack() as last:
        patch.delattr(look, "read_timeline")
        for number in range(TRIES):
            name = topic(partitions=1, config=make_settings(RETENTION))
            directory, of = tmp_path / str(number), f"{group}-{number}"
            directory.mkdir()
            config = make_config(kafka, name, of, directory)
            ledger = last.enter_context(open_ledger(config.ledger_url()))
            shop = SlowShop(properties_of(kafka.bootstrap), name, of)
            story = Story(config, ledger, shop)
            story.happen()
            # Where the machine stood still the rates were not even: nobody could have told the time.
            if shop.pause < EVEN:
                break
        patch.undo()
        check_story(story)


def check_story(story: Story) -> None:
    shop, told, ledger = story.shop, story.told, story.ledger
    assert shop.overtaken_at is not None
    losing = [
        (at, status)
        for at, status in told
        if status.verdict is Verdict.LOSING and at < shop.overtaken_at
    ]
    assert losing, [str(status.verdict) for _, status in told]
    # Announced well before, each time with the time that is left, at the earliest.
    first_at, first = losing[0]
    assert (shop.overtaken_at - first_at).total_seconds() > RETENTION / 3
    for _, status in losing:
        assert status.seconds_to_loss is not None
        left = (shop.overtaken_at - status.taken_at).total_seconds()
        late, slack = left - status.seconds_to_loss, 0.2 * left
        assert -slack - SEGMENT_SECONDS - CHECK_SECONDS <= late, (left, status.sentence)
        assert late <= slack + shop.late, (left, shop.late, status.sentence)
    assert "at the earliest" in first.sentence
    assert first.next_commands == ("backlogctl hold orders --for 6h",)
    workspace = Workspace(story.config, ledger, KINDS)
    page = TestClient(make_page(workspace, board=story.board))
    losing_board = Board()
    losing_board.put_stream(first)
    before = TestClient(make_page(workspace, board=losing_board)).get("/").text
    assert first.sentence in html.unescape(before)
    assert "backlogctl hold orders --for 6h" in before
    # Then exactly what is gone, as the broker has it.
    low, committed = story.read_broker()
    assert committed is not None
    last = told[-1][1]
    assert (last.verdict, last.lost) == (Verdict.LOST, low - committed)
    gaps = story.list_gaps()
    assert [(gap.cause, gap.certainty) for gap in gaps] == [(Cause.EXPIRED, Certainty.EXACT)] * len(
        gaps
    )
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
