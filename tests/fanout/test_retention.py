"""Holding a topic's retention and giving it back, on a real broker, with crashes in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from backlogctl.errors import PlanStale
from backlogctl.fanout import retention
from backlogctl.fanout.retention import (
    compute_expansion_hold,
    compute_hold,
    raise_retention,
    restore_retention,
)
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.ledger import OPERATOR, Hold, Ledger
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import delete_topic, properties_of, set_config

MS, BYTES = "retention.ms", "retention.bytes"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Desk:
    """A ledger, a client and a topic that keeps an hour by its own setting."""

    def __init__(self, ledger: Ledger, admin: Admin, topic: str) -> None:
        self.ledger, self.admin, self.topic = ledger, admin, topic
        self.topic_id = verbs.read_topic_id(admin, topic)[0]

    def hold(
        self, holder: str = OPERATOR, ms: str = "7200000", until: datetime | None = NOON
    ) -> Hold:
        return raise_retention(
            self.ledger,
            self.admin,
            stream="orders",
            cluster="main",
            topic=self.topic,
            topic_id=self.topic_id,
            holder=holder,
            settings={MS: ms, BYTES: "-1"},
            until=until,
            actor="ada",
        )

    def give_back(self, hold: Hold) -> tuple[str, ...]:
        return restore_retention(self.ledger, self.admin, hold)

    def read(self) -> tuple[str | None, str | None]:
        found = verbs.read_topic_overrides(self.admin, self.topic, [MS, BYTES])
        return found[MS], found[BYTES]


@pytest.fixture
def desk(properties: dict[str, str], topic: MakeTopic, ledger: Ledger) -> Desk:
    admin = make_admin(properties)
    return Desk(ledger, admin, topic(partitions=1, config={MS: "3600000", BYTES: "1000000"}))


def test_settings_of_a_hold() -> None:
    six = timedelta(hours=6)
    both = {MS: "3600000", BYTES: "1000"}
    assert compute_hold(both, six) == {MS: str(3_600_000 + 21_600_000 + 600_000), BYTES: "-1"}
    assert compute_hold({MS: "-1", BYTES: "1000"}, six) == {BYTES: "-1"}
    assert compute_hold({MS: "-1", BYTES: "-1"}, six) == {}
    assert compute_hold({**both, "cleanup.policy": "compact"}, six) == {}
    assert compute_hold({**both, "cleanup.policy": "compact,delete"}, six)[BYTES] == "-1"
    assert compute_hold({MS: str(2**63 - 1)}, six) == {MS: str(2**63 - 1)}
    assert compute_hold({MS: "5"}, six, margin=timedelta(0)) == {MS: "21600005"}
    assert compute_expansion_hold(both) == {MS: "-1", BYTES: "-1"}
    assert compute_expansion_hold({MS: "7"}) == {MS: "-1"}


def test_retention_is_raised_and_given_back(desk: Desk) -> None:
    hold = desk.hold()
    assert desk.read() == ("7200000", "-1")
    assert hold.old == {MS: "3600000", BYTES: "1000000"}
    assert desk.hold() == hold, "the same call changes nothing more"
    assert desk.give_back(hold) == ()
    assert desk.read() == ("3600000", "1000000")
    assert desk.ledger.holds.list() == ()
    assert desk.give_back(hold) == ()


def test_setting_that_was_unset_is_unset_again(
    properties: dict[str, str], topic: MakeTopic, ledger: Ledger
) -> None:
    desk = Desk(ledger, make_admin(properties), topic(partitions=1))
    hold = desk.hold(ms="-1")
    assert hold.old == {MS: None, BYTES: None}
    assert desk.read() == ("-1", None), "what keeps as long already is left unset"
    assert desk.give_back(hold) == ()
    assert desk.read() == (None, None)


def test_two_holders_in_either_order(desk: Desk) -> None:
    operator, expansion = desk.hold(), desk.hold("r-1", "-1", None)
    assert desk.read() == ("-1", "-1")
    assert desk.give_back(expansion) == ()
    assert desk.read() == ("-1", "-1"), "the operator holds it still"
    assert desk.give_back(operator) == ()
    assert desk.read() == ("3600000", "1000000")

    operator, expansion = desk.hold(), desk.hold("r-2", "-1", None)
    assert desk.give_back(operator) == desk.give_back(expansion) == ()
    assert desk.read() == ("3600000", "1000000")


def test_lower_hold_does_not_lower(desk: Desk) -> None:
    set_config(properties_of(desk.admin.addresses), desk.topic, {MS: "99999999999"})
    hold = desk.hold()
    assert desk.read() == ("99999999999", "-1")
    assert desk.give_back(hold) == ()
    assert desk.read() == ("99999999999", "1000000")


def test_value_that_somebody_changed_is_left_and_told(desk: Desk) -> None:
    hold = desk.hold()
    set_config(properties_of(desk.admin.addresses), desk.topic, {MS: "5000000"})
    (warning,) = desk.give_back(hold)
    assert "retention.ms" in warning
    assert "is 5000000 now, not 7200000" in warning
    assert "it was 3600000 before" in warning
    assert desk.read() == ("5000000", "1000000")
    assert desk.ledger.holds.list() == ()


@pytest.mark.parametrize("crash", ["alter_topic_config", "read_topic_settings"])
def test_crash_while_raising_loses_no_value(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention, crash, fail)
        with pytest.raises(KeyboardInterrupt):
            desk.hold()
    (hold,) = desk.ledger.holds.list()
    assert desk.give_back(hold) == (), "nothing was raised, so nothing is missed"
    again = desk.hold()
    assert desk.read() == ("7200000", "-1")
    assert again.old == {MS: "3600000", BYTES: "1000000"}


def test_crash_while_a_second_raise_is_under_way(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = desk.hold()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention, "alter_topic_config", fail)
        with pytest.raises(KeyboardInterrupt):
            desk.hold("r-1", "-1", None)
    second = desk.ledger.holds.list(holder="r-1")[0]
    assert desk.give_back(first) == desk.give_back(second) == ()
    assert desk.read() == ("3600000", "1000000")


def test_crash_before_the_release_is_made_good(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = desk.hold()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(desk.ledger.holds, "release", fail)
        with pytest.raises(KeyboardInterrupt):
            desk.give_back(hold)
    assert desk.read() == ("3600000", "1000000")
    assert len(desk.ledger.holds.list()) == 1
    assert desk.give_back(hold) == ()
    assert desk.ledger.holds.list() == ()


def test_holder_that_comes_while_another_gives_back_keeps_the_topic(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = desk.hold()
    real = verbs.alter_topic_config
    came: list[Hold] = []

    def alter(*arguments: object) -> None:
        monkeypatch.setattr(retention, "alter_topic_config", real)
        came.append(desk.hold("r-1", "-1", None))
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(retention, "alter_topic_config", alter)
    assert desk.give_back(first) == ()
    assert desk.read() == ("-1", "-1")
    assert desk.give_back(came[0]) == ()
    assert desk.read() == ("3600000", "1000000")


def test_fault_15_topic_that_is_gone_or_another_is_left_alone(
    kafka: EmbeddedKafka, ledger: Ledger, unique: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), f"hold-{unique}"
    admin = make_admin(properties)
    verbs.create_topic(admin, name, partitions=1, config={MS: "3600000"})
    desk = Desk(ledger, admin, name)
    hold = desk.hold()
    delete_topic(properties, name)
    verbs.create_topic(admin, name, partitions=1, config={MS: "7200000"})
    with pytest.raises(PlanStale, match="made anew"):
        desk.hold()
    assert desk.give_back(hold) == (
        f"topic {name} was made anew, so its retention was left as it is",
    )
    assert desk.read() == ("7200000", None)

    later = Desk(ledger, admin, name)
    hold = later.hold(ms="9999999")
    delete_topic(properties, name)
    assert later.give_back(hold) == (f"topic {name} is gone, so its retention was not given back",)
    assert ledger.holds.list() == ()
