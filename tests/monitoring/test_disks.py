"""When a broker's disks are full; a slow consumer's loss is announced in time."""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from backlogctl.clock import utc_now
from backlogctl.config import Config
from backlogctl.kafka.admin import committed_offsets, create_topic, list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.ledger.measurements import DiskReading
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from backlogctl.monitoring.watch import look
from backlogctl.monitoring.watch.board import Board
from backlogctl.monitoring.watch.disks import WINDOW, estimate_growth, forecast_full, make_readings
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.web.page.app import make_page
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.small_disk import can_limit
from backlogctl.values import Cause, Certainty, Gap
from tests.kit.kafka import properties_of, set_config, wait_until
from tests.monitoring.live_watch import run_watch
from tests.monitoring.slow_shop import CHECK_SECONDS, SEGMENT_SECONDS, SlowShop, make_settings

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GIB = 2**30


def read(minutes: float, usable: int | None, broker: int = 1) -> DiskReading:
    return DiskReading("main", NOON + timedelta(minutes=minutes), broker, usable, 100 * GIB)


def test_a_disk_that_fills_is_full_at_its_rate() -> None:
    readings = [
        read(-WINDOW.total_seconds() / 30, 90 * GIB),
        read(-10, 20 * GIB),
        read(0, 10 * GIB),
    ]
    found = forecast_full(readings, NOON)
    assert found.seconds == pytest.approx(600)
    assert (found.broker, found.is_known) == (1, True)


@pytest.mark.parametrize(
    ("readings", "why", "known"),
    [
        ([], "never read", False),
        ([read(0, 10 * GIB)], "read once", False),
        ([read(-30, 20 * GIB), read(-20, 10 * GIB)], "was not read for", False),
        ([read(-10, 10 * GIB), read(0, None)], "does not report", False),
        ([read(-10, 10 * GIB), read(0, 10 * GIB)], "no disk is filling", True),
        ([read(-10, 10 * GIB), read(0, 11 * GIB)], "no disk is filling", True),
    ],
)
def test_what_is_not_known_is_not_guessed(
    readings: list[DiskReading], why: str, known: bool
) -> None:
    found = forecast_full(readings, NOON)
    assert found.seconds is None
    assert why in found.why
    assert found.is_known == known


def test_the_broker_that_is_full_first_is_told_also_where_another_is_unknown() -> None:
    readings = [
        *(read(minutes, left * GIB, broker=1) for minutes, left in ((-10, 30), (0, 20))),
        *(read(minutes, left * GIB, broker=2) for minutes, left in ((-10, 20), (0, 10))),
        read(0, None, broker=3),
    ]
    found = forecast_full(readings, NOON)
    assert (found.broker, found.is_known) == (2, False)
    assert found.seconds == pytest.approx(600)


def test_what_comes_meanwhile_is_told_at_the_rate_of_the_last_minutes() -> None:
    fills = [read(-10, 20 * GIB), read(0, 10 * GIB), read(-10, 20 * GIB, 2), read(0, 30 * GIB, 2)]
    assert estimate_growth(fills, 1, 60.0)[0] == GIB
    assert estimate_growth(fills, 2, 60.0) == (0, "it does not fill by itself")
    grown, told = estimate_growth(fills, 1, None)
    assert grown is None
    assert "a second besides" in told
    for readings in ([], fills[1:2], [read(-10, None), read(0, 5 * GIB)]):
        grown, told = estimate_growth(readings, 1, 60.0)
        assert grown is None
        assert "is unknown" in told


def test_a_real_broker_on_a_small_disk(tmp_path: Path) -> None:
    assert can_limit(), "this machine does not let us make a small disk"
    size = 96 * 2**20
    with EmbeddedKafka.start(tmp_path, disk_bytes=size) as kafka:
        client = kafka.client_properties
        create_topic(client, "full", partitions=1, replication=1)
        (before,) = make_readings("main", read_log_dirs(client, ""), None)
        producer = make_producer(client, {})
        for _ in range(10):
            producer.produce("full", secrets.token_bytes(2**19))
        assert producer.flush(30) == 0
        (after,) = make_readings("main", read_log_dirs(client, ""), None)
    assert before.total_bytes == after.total_bytes == size
    assert before.usable_bytes is not None
    assert after.usable_bytes is not None
    assert before.usable_bytes - after.usable_bytes > 4 * 2**20
    later = replace(after, at=before.at + timedelta(minutes=1))
    found = forecast_full([before, later], later.at)
    assert found.seconds is not None
    assert found.seconds < 30 * 60


RETENTION = 9.0
INTERVAL = 0.4
SLOW_WINDOW = timedelta(seconds=4)
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

    def take(self, status: GroupStatus) -> None:
        self.told.append((utc_now(), status))
        self.board.put_stream(status)

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
        settings = {"window": SLOW_WINDOW, "horizon": self.config.watch.horizon}
        with run_watch(self.config, self.ledger, INTERVAL, on_status=self.take, **settings):
            self.shop.start()
            try:
                wait_until(lambda: self.shop.overtaken_at, what="retention passes the consumer")
                # No more is lost from here on.
                set_config(self.shop.properties, self.shop.topic, {"retention.ms": "-1"})
                wait_until(self.is_told, what="the loss is told and written down")
            finally:
                self.shop.stop()
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
