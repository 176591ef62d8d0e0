"""The temporary topic and a topic's retention on a real broker, with crashes in between."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from backlogctl.errors import PlanStale, Refused, UsageError
from backlogctl.fanout import retention, temporary_topic
from backlogctl.fanout.retention import (
    compute_expansion_hold,
    compute_hold,
    raise_retention,
    restore_retention,
)
from backlogctl.fanout.temporary_settings import make_temporary_config
from backlogctl.fanout.temporary_topic import (
    create_temporary_topic,
    delete_temporary_topic,
    name_temporary_topic,
    start_recovery_group,
)
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.admin import TopicInfo
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.errors import GroupActive, TopicMissing
from backlogctl.ledger import OPERATOR, Hold, Ledger, TemporaryTopic
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.disks import doing
from tests.kit.kafka import (
    commit,
    delete_topic,
    join,
    properties_of,
    publish,
    read_all,
    set_config,
    wait_until,
)
from tests.kit.ledger import NOON, create_recovery


class Desk:
    """A planned expansion of a topic with two partitions, and its temporary topic."""

    def __init__(self, ledger: Ledger, admin: Admin, topic: str) -> None:
        self.ledger, self.admin, self.topic = ledger, admin, topic
        self.source = verbs.describe_topic(admin, topic)
        self.id = create_recovery(ledger, "expand", topic, group="g", plan_hash="hash").id
        self.name = name_temporary_topic(topic, self.id)

    def create(self, partitions: int = 4) -> TemporaryTopic:
        return create_temporary_topic(
            self.ledger,
            self.admin,
            recovery_id=self.id,
            cluster="main",
            source=self.source,
            partitions=partitions,
        )

    def delete(self, drained: bool = True, deny: tuple[str, ...] = ("__*",)) -> None:
        delete_temporary_topic(
            self.ledger,
            self.admin,
            recovery_id=self.id,
            cluster="main",
            source=self.source,
            deny_topics=deny,
            is_drained=lambda: drained,
        )

    def exists(self) -> bool:
        try:
            verbs.read_topic_id(self.admin, self.name)
        except TopicMissing:
            return False
        return True


@pytest.fixture
def desk(properties: dict[str, str], topic: MakeTopic, ledger: Ledger) -> Iterator[Desk]:
    admin = make_admin(properties)
    made = Desk(ledger, admin, topic(partitions=2))
    yield made
    if made.exists():
        delete_topic(properties, made.name)


@contextmanager
def crashing_at(owner: object, name: str) -> Iterator[None]:
    """It is killed where it would call this."""

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, crash)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for brokers that are behind are short where there is one broker."""
    monkeypatch.setattr(temporary_topic, "_TRY_SECONDS", 1.0)


def test_name_is_one_that_kafka_takes() -> None:
    assert name_temporary_topic("orders", "r-20261121-0001") == "orders.recovery.r-20261121-0001"
    assert len(name_temporary_topic("o" * 224, "r-20261121-0001")) == 249
    for topic, recovery in (("o" * 225, "r-20261121-0001"), ("orders", "*"), ("or ders", "r-1")):
        with pytest.raises(UsageError, match="249"):
            name_temporary_topic(topic, recovery)


def test_settings_of_old_and_new_brokers() -> None:
    new = {"max.message.bytes": str(64 * 2**20), "message.timestamp.before.max.ms": "1"}
    config = make_temporary_config(TopicInfo("t", "id", 1, {**new, "min.insync.replicas": "2"}))
    assert config["max.message.bytes"] == str(64 * 2**20)
    assert config["min.insync.replicas"] == "2"
    assert config["message.timestamp.after.max.ms"] == str(2**63 - 1)
    old = make_temporary_config(TopicInfo("t", "id", 1, {"max.message.bytes": "1000"}))
    assert old["max.message.bytes"] == str(32 * 2**20)
    assert "message.timestamp.before.max.ms" not in old
    assert old["message.timestamp.difference.max.ms"] == str(2**63 - 1)


def test_topic_is_created_once_and_deleted_once(desk: Desk) -> None:
    made = desk.create()
    assert made == desk.create() == desk.ledger.temporary_topics.get(desk.id)
    info = verbs.describe_topic(desk.admin, desk.name)
    assert (info.topic_id, info.partitions) == (made.topic_id, 4)
    wanted = make_temporary_config(desk.source)
    assert {name: info.config[name] for name in wanted} == wanted
    with pytest.raises(Refused, match="messages in it are unread"):
        desk.delete(drained=False)
    assert desk.exists()
    desk.delete()
    assert not desk.exists()
    desk.delete()
    gone = desk.ledger.temporary_topics.get(desk.id)
    assert gone is not None
    assert gone.deleted_at is not None
    with pytest.raises(Refused, match="deleted already"):
        desk.create()


@pytest.mark.usefixtures("quick")
def test_crash_between_creation_and_record(desk: Desk) -> None:
    """The empty topic is taken as ours; with a record in it, or other settings, it is not."""
    with crashing_at(desk.ledger.temporary_topics, "record_id"):
        desk.create()
    first = verbs.read_topic_id(desk.admin, desk.name)[0]
    verbs.alter_topic_config(desk.admin, desk.name, {"retention.ms": "5"})
    with pytest.raises(Refused, match=r"its retention\.ms differ"):
        desk.create()
    verbs.alter_topic_config(desk.admin, desk.name, {"retention.ms": "-1"})
    publish(properties_of(desk.admin.addresses), desk.name, {1: 1})
    for verb in (desk.create, desk.delete):
        with pytest.raises(Refused, match="there are records in it"):
            verb()
    assert verbs.read_topic_id(desk.admin, desk.name)[0] == first
    delete_topic(properties_of(desk.admin.addresses), desk.name)
    with crashing_at(desk.ledger.temporary_topics, "record_id"):
        desk.create()
    assert desk.create().topic_id == verbs.read_topic_id(desk.admin, desk.name)[0] != first


def test_cancel_after_a_crash_between_creation_and_record(desk: Desk) -> None:
    with crashing_at(desk.ledger.temporary_topics, "record_id"):
        desk.create()
    desk.delete()
    assert not desk.exists()


def test_nothing_to_delete_is_fine(desk: Desk) -> None:
    desk.delete()
    desk.ledger.temporary_topics.announce(desk.id, "main", desk.name, 4)
    desk.delete()


def test_fault_17_topic_that_is_still_being_deleted_is_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_topic, "_TRY_SECONDS", 60.0)
    properties = properties_of(desk.admin.addresses)
    old = verbs.create_topic(desk.admin, desk.name, partitions=4)

    def delete_late() -> None:
        time.sleep(0.7)
        delete_topic(properties, desk.name)

    with doing(delete_late):
        made = desk.create()
    assert made.topic_id not in (None, old)


@pytest.mark.usefixtures("quick")
def test_fault_15_topic_of_the_same_name_and_another_id_is_left_alone(desk: Desk) -> None:
    properties = properties_of(desk.admin.addresses)
    desk.create()
    delete_topic(properties, desk.name)
    with pytest.raises(Refused, match="somebody deleted it"):
        desk.create()
    other = verbs.create_topic(desk.admin, desk.name, partitions=4)
    for verb in (desk.create, desk.delete):
        with pytest.raises(Refused, match=f"has id {re.escape(other)}"):
            verb()
    assert verbs.read_topic_id(desk.admin, desk.name)[0] == other


@pytest.mark.usefixtures("quick")
def test_fault_60_only_our_topic_is_deleted(desk: Desk, tmp_path: Path) -> None:
    """Not one that is not ours, no wildcard, no internal topic, whatever the ledger was made."""
    verbs.set_group_offsets(desk.admin, "anybody", desk.topic, {0: 0})  # makes the internal topic
    theirs = verbs.create_topic(desk.admin, desk.name, partitions=4)
    with pytest.raises(Refused, match="did not make it"):
        desk.create()
    desk.delete()
    assert verbs.read_topic_id(desk.admin, desk.name)[0] == theirs, "not in the ledger"
    delete_topic(properties_of(desk.admin.addresses), desk.name)

    made = desk.create()
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")

    def record(name: str, topic_id: str | None) -> None:
        statement = text("UPDATE backlog_temporary_topics SET name = :n, topic_id = :i")
        with engine.begin() as connection:
            connection.execute(statement, {"n": name, "i": topic_id})

    for name in (desk.topic, "*", f"{desk.topic}.*", "__consumer_offsets", f"{desk.name}*"):
        record(name, desk.source.topic_id if name == desk.topic else made.topic_id)
        with pytest.raises(Refused, match="not the name of a temporary topic"):
            desk.delete()
    record(desk.name, made.topic_id)
    engine.dispose()
    with pytest.raises(Refused, match="never deleted"):
        desk.delete(deny=("__*", "*.recovery.*"))
    desk.source = replace(desk.source, name="__consumer_offsets")
    with pytest.raises(Refused):
        desk.delete()
    assert desk.exists()
    verbs.read_topic_id(desk.admin, desk.topic)
    verbs.read_topic_id(desk.admin, "__consumer_offsets")


def test_recovery_group_begins_at_the_beginning_and_is_not_moved_back(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=3)
    admin = make_admin(properties)

    def start() -> tuple[int, ...]:
        return start_recovery_group(admin, group=group, topic=name, partitions=3)

    publish(properties, name, {0: 5, 1: 5, 2: 5})
    commit(properties, group, name, {1: 3})
    assert start() == (0, 2)
    assert verbs.committed_offsets(admin, group, name, range(3)) == {0: 0, 1: 3, 2: 0}
    member = join(properties, group, name)
    assert start() == (), "nothing to set: it may be running already"
    with pytest.raises(GroupActive):
        start_recovery_group(admin, group=group, topic=topic(partitions=1), partitions=1)
    member.close()


def test_fault_67_brokers_with_a_size_limit_keep_all_of_it(tmp_path: Path, ledger: Ledger) -> None:
    limits = {
        "log.retention.bytes": "1000",
        "log.retention.ms": "1000",
        "log.segment.bytes": "1048576",
        "log.message.timestamp.before.max.ms": "3600000",
        "log.message.timestamp.type": "LogAppendTime",
    }
    with EmbeddedKafka.start(tmp_path / "kafka", heap="256m", properties=limits) as broker:
        properties = properties_of(broker.bootstrap)
        admin = make_admin(properties)
        verbs.create_topic(admin, "orders", partitions=1)
        desk = Desk(ledger, admin, "orders")
        desk.create(partitions=1)
        publish(properties, "orders", {0: 3000}, value=b"x" * 2000)
        publish(properties, desk.name, {0: 3000}, hours_ago=48, value=b"x" * 2000)
        wait_until(
            lambda: verbs.list_offsets(admin, "orders", [0], "earliest")[0] > 0,
            what="the brokers' limits delete from the source",
        )
        time.sleep(2.5)  # two more checks of the retention
        assert verbs.list_offsets(admin, desk.name, [0], "earliest") == {0: 0}
        kept = read_all(properties, desk.name, [0])
        assert len(kept) == 3000
        assert all(message.timestamp()[1] < (time.time() - 47 * 3600) * 1000 for message in kept)


MS, BYTES = "retention.ms", "retention.bytes"


class Keeper:
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
def keeper(properties: dict[str, str], topic: MakeTopic, ledger: Ledger) -> Keeper:
    admin = make_admin(properties)
    return Keeper(ledger, admin, topic(partitions=1, config={MS: "3600000", BYTES: "1000000"}))


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


def test_retention_is_raised_and_given_back(keeper: Keeper) -> None:
    hold = keeper.hold()
    assert keeper.read() == ("7200000", "-1")
    assert hold.old == {MS: "3600000", BYTES: "1000000"}
    assert keeper.hold() == hold, "the same call changes nothing more"
    assert keeper.give_back(hold) == ()
    assert keeper.read() == ("3600000", "1000000")
    assert keeper.ledger.holds.list() == ()
    assert keeper.give_back(hold) == ()


def test_setting_that_was_unset_is_unset_again(
    properties: dict[str, str], topic: MakeTopic, ledger: Ledger
) -> None:
    keeper = Keeper(ledger, make_admin(properties), topic(partitions=1))
    hold = keeper.hold(ms="-1")
    assert hold.old == {MS: None, BYTES: None}
    assert keeper.read() == ("-1", None), "what keeps as long already is left unset"
    assert keeper.give_back(hold) == ()
    assert keeper.read() == (None, None)


def test_two_holders_in_either_order(keeper: Keeper) -> None:
    operator, expansion = keeper.hold(), keeper.hold("r-1", "-1", None)
    assert keeper.read() == ("-1", "-1")
    assert keeper.give_back(expansion) == ()
    assert keeper.read() == ("-1", "-1"), "the operator holds it still"
    assert keeper.give_back(operator) == ()
    assert keeper.read() == ("3600000", "1000000")

    operator, expansion = keeper.hold(), keeper.hold("r-2", "-1", None)
    assert keeper.give_back(operator) == keeper.give_back(expansion) == ()
    assert keeper.read() == ("3600000", "1000000")


def test_lower_hold_does_not_lower(keeper: Keeper) -> None:
    set_config(properties_of(keeper.admin.addresses), keeper.topic, {MS: "99999999999"})
    hold = keeper.hold()
    assert keeper.read() == ("99999999999", "-1")
    assert keeper.give_back(hold) == ()
    assert keeper.read() == ("99999999999", "1000000")


def test_value_that_somebody_changed_is_left_and_told(keeper: Keeper) -> None:
    hold = keeper.hold()
    set_config(properties_of(keeper.admin.addresses), keeper.topic, {MS: "5000000"})
    (warning,) = keeper.give_back(hold)
    assert "retention.ms" in warning
    assert "is 5000000 now, not 7200000" in warning
    assert "it was 3600000 before" in warning
    assert keeper.read() == ("5000000", "1000000")
    assert keeper.ledger.holds.list() == ()


@pytest.mark.parametrize("crash", ["alter_topic_config", "read_topic_settings"])
def test_crash_while_raising_loses_no_value(keeper: Keeper, crash: str) -> None:
    with crashing_at(retention, crash):
        keeper.hold()
    (hold,) = keeper.ledger.holds.list()
    assert keeper.give_back(hold) == (), "nothing was raised, so nothing is missed"
    again = keeper.hold()
    assert keeper.read() == ("7200000", "-1")
    assert again.old == {MS: "3600000", BYTES: "1000000"}


def test_crash_while_a_second_raise_is_under_way(keeper: Keeper) -> None:
    first = keeper.hold()
    with crashing_at(retention, "alter_topic_config"):
        keeper.hold("r-1", "-1", None)
    second = keeper.ledger.holds.list(holder="r-1")[0]
    assert keeper.give_back(first) == keeper.give_back(second) == ()
    assert keeper.read() == ("3600000", "1000000")


def test_crash_before_the_release_is_made_good(keeper: Keeper) -> None:
    hold = keeper.hold()
    with crashing_at(keeper.ledger.holds, "release"):
        keeper.give_back(hold)
    assert keeper.read() == ("3600000", "1000000")
    assert len(keeper.ledger.holds.list()) == 1
    assert keeper.give_back(hold) == ()
    assert keeper.ledger.holds.list() == ()


def test_holder_that_comes_while_another_gives_back_keeps_the_topic(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keeper.hold()
    real = verbs.alter_topic_config
    came: list[Hold] = []

    def alter(*arguments: object) -> None:
        monkeypatch.setattr(retention, "alter_topic_config", real)
        came.append(keeper.hold("r-1", "-1", None))
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(retention, "alter_topic_config", alter)
    assert keeper.give_back(first) == ()
    assert keeper.read() == ("-1", "-1")
    assert keeper.give_back(came[0]) == ()
    assert keeper.read() == ("3600000", "1000000")


def test_fault_15_topic_that_is_gone_or_another_is_left_alone(
    kafka: EmbeddedKafka, ledger: Ledger, unique: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), f"hold-{unique}"
    admin = make_admin(properties)
    verbs.create_topic(admin, name, partitions=1, config={MS: "3600000"})
    keeper = Keeper(ledger, admin, name)
    hold = keeper.hold()
    delete_topic(properties, name)
    verbs.create_topic(admin, name, partitions=1, config={MS: "7200000"})
    with pytest.raises(PlanStale, match="made anew"):
        keeper.hold()
    assert keeper.give_back(hold) == (
        f"topic {name} was made anew, so its retention was left as it is",
    )
    assert keeper.read() == ("7200000", None)

    later = Keeper(ledger, admin, name)
    hold = later.hold(ms="9999999")
    delete_topic(properties, name)
    assert later.give_back(hold) == (f"topic {name} is gone, so its retention was not given back",)
    assert ledger.holds.list() == ()
