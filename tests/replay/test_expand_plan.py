"""Plans of expansions on a real broker: what they say, and that they change nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewPartitions

from backlogctl.config import Config, Stream
from backlogctl.errors import BacklogError, InvalidTransition, Refused, UsageError
from backlogctl.kafka.admin import describe_topic, read_topic_id
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlogctl.replay.engine.approval import approve_plan, check_hash
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.options import read_options
from backlogctl.replay.kinds.expand import planning
from backlogctl.replay.kinds.expand.kind import KIND as EXPAND
from backlogctl.replay.kinds.expand.plan import ExpandOptions
from backlogctl.replay.kinds.expand.planning import compute_expansion, inspect_backlog, plan_expand
from backlogctl.replay.observe.snapshot import Draft, take_snapshot
from backlogctl.replay.observe.stream import sample_stream
from backlogctl.values import Recovery, RecoveryState
from tests.conftest import MakeTopic
from tests.kit.following import find_next, follow
from tests.kit.kafka import commit, join, publish, set_config, set_offsets_raw, wait_until
from tests.kit.shop import Said, Shop
from tests.spark_backfill.world import make_stream

SECRET = "hunter2-of-the-consumers"
CONSUMERS: dict[str, Any] = {
    "launcher": "process",
    "command": ["python", "-m", "order_service", "--topic", "{topic}"],
    "replicas": 2,
    "environment": {"DB_PASSWORD": "${env:DB_PASSWORD}"},
}
BEHIND = {0: 400, 1: 200, 2: 100}
GIVEN = ExpandOptions(rate=20.0)


@pytest.fixture
def behind(empty_shop: Shop) -> Shop:
    """A shop whose group has read 10 messages of each partition, and stopped."""
    publish(empty_shop.properties, empty_shop.topic, BEHIND)
    set_offsets_raw(
        empty_shop.properties, empty_shop.group, empty_shop.topic, dict.fromkeys(BEHIND, 10)
    )
    empty_shop.environment["DB_PASSWORD"] = SECRET
    empty_shop.write_config(consumers=CONSUMERS)
    return empty_shop


def plan(shop: Shop, options: ExpandOptions = GIVEN, **extra: Any) -> Recovery:
    """Plans in this process; `extra` are keys of the stream."""
    if extra:
        shop.write_config(**extra)
    workspace, stream = open_both(shop)
    return plan_expand(workspace, stream, options)


def open_both(shop: Shop) -> tuple[Workspace, Stream]:
    workspace = shop.open()
    return workspace, workspace.config.stream("orders")


def list_topics(shop: Shop) -> set[str]:
    """All but those of the tests of other processes: they come and go."""
    names = make_admin(shop.properties).list_topics(timeout=10).topics
    own = shop.group.removeprefix("group-")
    return {name for name in names if own in name or not re.search("[0-9a-f]{6}|^__", name)}


def add_partition(shop: Shop) -> None:
    admin, wanted = make_admin(shop.properties), len(BEHIND) + 1
    admin.create_partitions([NewPartitions(shop.topic, wanted)])[shop.topic].result(60)
    wait_until(lambda: read_topic_id(admin, shop.topic)[1] == wanted)


def find_warning(recovery: Recovery, words: str) -> str:
    (found,) = [text for text in recovery.plan["warnings"] if words in text]
    return str(found)


def test_a_backlog_is_planned_from_measured_speed_and_nothing_is_changed(behind: Shop) -> None:
    workspace, stream = open_both(behind)
    topics = list_topics(behind)
    before = describe_topic(behind.properties, behind.topic)
    sample_stream(workspace, stream)
    time.sleep(1)
    commit(behind.properties, behind.group, behind.topic, {0: 110, 1: 60, 2: 10})
    recovery = plan_expand(workspace, stream, ExpandOptions())
    made = EXPAND.read_plan(recovery)
    assert (recovery.kind, recovery.state) == ("expand", RecoveryState.PLANNED)
    check_hash(workspace.ledger.recoveries.get(recovery.id))
    assert workspace.ledger.recoveries.gap_ids(recovery.id) == ()

    rows = [(row.start, row.committed, row.end, row.lag) for row in made.partitions]
    assert rows == [(110, 110, 400, 290), (60, 60, 200, 140), (10, 10, 100, 90)]
    assert all(row.oldest_unread_at for row in made.partitions)
    assert made.lag == 520
    assert made.temporary.model_dump() == {
        "topic": f"{behind.topic}.recovery.{recovery.id}",
        "partitions": 30,
        "replication": 1,
    }
    assert made.recovery_group == f"{behind.group}.recovery.{recovery.id}"
    assert (made.order, made.factor, made.replicas, made.consumers) == ("key", 10, 2, 20)
    assert made.canary.messages == 500
    assert sum(made.canary.partitions.values()) == 500

    # 150 messages were read while 2 replicas ran.
    assert made.consumed_per_second == pytest.approx(2 * made.rate_per_consumer, rel=0.01)
    assert made.rate_source.startswith("measured over ")
    assert "only; `--rate N`" in find_warning(recovery, "speed of a consumer")
    assert made.seconds_to_drain_now is not None
    assert made.seconds_to_drain_expanded is not None
    assert made.seconds_to_drain_expanded < made.seconds_to_drain_now
    # The broker keeps a week.
    assert made.seconds_to_loss == pytest.approx(7 * 86400, abs=300)
    assert (made.loss_by, made.wins, made.smallest_factor) == ("time", True, 1)
    assert made.hold.model_dump() == {"needed": False, "changes": {}}
    assert (made.raised, made.members, made.other_groups) == ((), (), ())
    assert made.disk.enough is True
    assert "python -m order_service" in made.stopped[0]
    assert "are not where `partitioner: murmur2`" in find_warning(recovery, "keys looked at")
    assert made.launch["environment"] == ["DB_PASSWORD"]
    assert SECRET not in json.dumps(made.dump())

    assert list_topics(behind) == topics
    assert describe_topic(behind.properties, behind.topic) == before


def test_the_same_backlog_makes_the_same_plan(behind: Shop) -> None:
    workspace, stream = open_both(behind)
    draft = Draft(workspace, stream, "r-20261121-0001")
    backlog = inspect_backlog(draft, take_snapshot(draft), "earliest")
    once, again = (compute_expansion(draft, backlog, GIVEN) for _ in range(2))
    assert once.planned_at <= again.planned_at
    assert once == again.model_copy(update={"planned_at": once.planned_at})


def test_options_take_the_place_of_the_configuration(behind: Shop) -> None:
    options = ExpandOptions(rate=5.0, factor=3, order="round_robin")
    recovery = plan(behind, options, consumers={**CONSUMERS, "max_consumers": 4})
    made = EXPAND.read_plan(recovery)
    assert (made.factor, made.temporary.partitions, made.consumers) == (3, 9, 4)
    assert (made.order, made.rate_source) == ("round_robin", "given")
    assert made.seconds_to_drain_now == pytest.approx(670 / 10, abs=0.1)
    assert made.seconds_to_drain_expanded == pytest.approx(670 / 20, abs=0.1)
    assert find_warning(recovery, "lose their order")
    assert find_warning(recovery, "max_consumers")


def test_stopped_consumers_without_samples_need_a_rate(behind: Shop) -> None:
    with pytest.raises(UsageError, match="how fast one consumer is") as caught:
        plan(behind, ExpandOptions())
    assert "first repair the consumer" in caught.value.hint
    assert "--rate" in caught.value.hint


def test_fault_21_a_partition_without_a_commit_begins_where_it_was_said(behind: Shop) -> None:
    behind.group += "-new"
    set_offsets_raw(behind.properties, behind.group, behind.topic, {0: 10, 1: 10})
    recovery = plan(behind, consumers=CONSUMERS)
    row = recovery.plan["partitions"][2]
    assert (row["start"], row["committed"], row["lag"]) == (0, None, 100)
    assert "its log start 0" in find_warning(recovery, "no committed offset")
    recovery = plan(behind, ExpandOptions(rate=20.0, start="latest"))
    row = recovery.plan["partitions"][2]
    assert (row["start"], row["committed"], row["lag"]) == (100, None, 0)
    assert "100 messages before it are never read" in find_warning(recovery, "no committed offset")


def test_fault_64_other_groups_and_members_are_named(behind: Shop) -> None:
    audit = f"{behind.group}-audit"
    set_offsets_raw(behind.properties, audit, behind.topic, {0: 5})
    member = join(behind.properties, behind.group, behind.topic, client_id="till-7")
    try:
        recovery = plan(behind)
    finally:
        member.close()
    assert recovery.plan["other_groups"] == [audit]
    (name,) = recovery.plan["members"]
    assert name.startswith("till-7 at ")
    assert name in recovery.plan["stopped"][1]


def test_retention_is_raised_where_it_may_be_faster(
    behind: Shop, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = {"retention.ms": "3600000", "retention.bytes": "1000000000"}
    behind.topic = topic(partitions=1, config=hour)
    publish(behind.properties, behind.topic, {0: 500}, hours_ago=0.9)
    set_offsets_raw(behind.properties, behind.group, behind.topic, {0: 10})
    recovery = plan(behind, consumers=CONSUMERS)
    made = EXPAND.read_plan(recovery)
    assert made.seconds_to_loss == pytest.approx(360, abs=60)
    assert made.hold.model_dump() == {
        "needed": True,
        "changes": {
            "retention.bytes": {"from": "1000000000", "to": "-1"},
            "retention.ms": {"from": "3600000", "to": "-1"},
        },
    }
    assert f"retention.ms of {behind.topic} from 1 h to unlimited" in made.raised
    given_back = f"retention.ms of {behind.topic}: 1 h again, unless somebody else holds it"
    assert given_back in made.given_back
    # Three, though a minute or more has gone since they were published.
    slow = plan(behind, ExpandOptions(rate=0.6, factor=1))
    assert (slow.plan["wins"], slow.plan["smallest_factor"]) == (False, 3)
    assert "a factor of 3 would win" in find_warning(slow, "faster than the drain")

    # By size, where the broker tells the bytes: what is unread takes more than may stay.
    dirs = LogDirs((BrokerLogDirs(1, 10**12, 10**12, {0: 2 * 10**9}),))
    monkeypatch.setattr(planning, "read_log_dirs", lambda *_: dirs)
    sized = plan(behind).plan
    assert (sized["seconds_to_loss"], sized["loss_by"]) == (0.0, "size")


def test_what_a_topic_or_group_is_told(behind: Shop) -> None:
    set_config(behind.properties, behind.topic, {"cleanup.policy": "compact"})
    recovery = plan(behind, approval="auto", isolation="read_uncommitted")
    assert recovery.state is RecoveryState.PLANNED
    assert find_warning(recovery, "holes between its offsets are no losses")
    assert find_warning(recovery, "the relay only committed")
    assert find_warning(recovery, "needs an approval by name")
    assert recovery.plan["seconds_to_loss"] is None
    assert recovery.plan["hold"]["needed"] is False


def test_one_key_that_keeps_one_consumer_at_work(behind: Shop) -> None:
    """Most of the backlog has one key: more consumers do not help, and the plan says so."""
    producer = make_producer(behind.properties)
    for number in range(4_000):
        producer.produce(behind.topic, b"x", b"hot" if number % 10 else b"%d" % number, 0)
        producer.poll(0)
    assert producer.flush(90) == 0
    by_key, spread = plan(behind), plan(behind, ExpandOptions(rate=20.0, order="round_robin"))
    told = find_warning(by_key, "have one key")
    assert "`--order round_robin`" in told
    slow, fast = (made.plan["seconds_to_drain_expanded"] for made in (by_key, spread))
    assert slow > 5 * fast
    assert not [text for text in spread.plan["warnings"] if "have one key" in text]


def test_disks(behind: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    full = LogDirs((BrokerLogDirs(1, 10, 10**9, dict.fromkeys(BEHIND, 10**6)),))
    monkeypatch.setattr(planning, "read_log_dirs", lambda *_: full)
    with pytest.raises(Refused, match="does not fit") as caught:
        plan(behind)
    assert "--allow disk" in caught.value.hint
    workspace = behind.open()
    assert workspace.ledger.recoveries.list() == ()
    allowed = plan(behind, ExpandOptions(rate=20.0, allow=("disk",)))
    assert find_warning(allowed, "does not fit")
    approve_plan(workspace, allowed, by="ada")
    # One at a time; a failed one has left things behind.
    with pytest.raises(InvalidTransition, match=allowed.id):
        plan(behind)
    for state in (RecoveryState.RUNNING, RecoveryState.FAILED):
        workspace.ledger.recoveries.advance(allowed.id, state, "ada")
        with pytest.raises(InvalidTransition, match=f"is {state}"):
            plan(behind)
    workspace.ledger.recoveries.advance(allowed.id, RecoveryState.CANCELLED, "ada")
    monkeypatch.setattr(planning, "read_log_dirs", lambda *_: LogDirs(None, "not granted"))
    unknown = plan(behind)
    assert unknown.plan["disk"]["enough"] is None
    assert "not granted" in find_warning(unknown, "room is not known")


def _read_all(shop: Shop) -> None:
    set_offsets_raw(shop.properties, shop.group, shop.topic, BEHIND)


def _go_beyond(shop: Shop) -> None:
    set_offsets_raw(shop.properties, shop.group, shop.topic, {1: 999})


def _forget_consumers(shop: Shop) -> None:
    shop.write_config(consumers=None)


@pytest.mark.parametrize(
    ("prepare", "kind", "told"),
    [
        (_read_all, Refused, "nothing is behind"),
        (_go_beyond, Refused, "lies beyond the end"),
        (_forget_consumers, UsageError, "how its consumers are started"),
    ],
)
def test_refusals(
    behind: Shop, prepare: Callable[[Shop], None], kind: type[BacklogError], told: str
) -> None:
    prepare(behind)
    with pytest.raises(kind, match=told) as caught:
        plan(behind)
    assert caught.value.hint


@pytest.mark.parametrize(
    "said",
    [
        {"rate": 0.0},
        {"rate": float("nan")},
        {"factor": 0},
        {"factor": 1001},
        {"order": "none"},
        {"start": "now"},
        {"allow": ["surplus"]},
    ],
)
def test_bad_options(said: dict[str, Any]) -> None:
    config = Config.from_text("{}", Path())
    stream = make_stream("orders").model_copy(update={"source": None})
    with pytest.raises(UsageError) as caught:
        read_options(ExpandOptions, said, config, stream, "--{}".format)
    assert caught.value.subject == f"--{next(iter(said))}"


def test_the_command_line(behind: Shop) -> None:
    """One document of the contract; `show`, `recoveries`, `approve` and `reject` take it."""
    said = behind.call("plan", "expand", "orders", "--json", code=2)
    assert "--rate" in said.error["hint"]
    document = behind.call("plan", "expand", "orders", "--rate", "20", "--json").document
    contract = {"id", "kind", "stream", "state", "plan_hash", "verdict", "counts", "partitions"}
    assert contract | {"warnings"} <= set(document)
    assert (document["kind"], document["state"], document["verdict"]) == (
        "expand",
        "planned",
        "wins",
    )
    keys = {"partition", "log_start", "committed", "end", "lag", "lost", "start"}
    assert keys <= set(document["partitions"][0])
    people = behind.call("plan", "expand", "orders", "--rate", "20", "--factor", "4")
    assert "670 messages" in people.out
    recovery = re.findall(r"r-\d{8}-\d{4}-\w{6}", people.out)[0]
    assert f"next: backlogctl approve {recovery} --by NAME" in people.out
    assert behind.call("show", recovery, "--json").document["progress"]["steps"] == []
    assert behind.call("approve", recovery, "--by", "ada", "--json").document["state"] == "approved"
    rows = behind.call("recoveries", "--json").document["recoveries"]
    assert {row["id"]: row["state"] for row in rows} == {
        recovery: "approved",
        document["id"]: "rejected",
    }
    assert recovery in behind.call("recoveries").out


@pytest.mark.parametrize("runs", [False, True])
def test_fault_122_status_says_what_is_next_of_an_expansion_that_is_not_begun(
    behind: Shop, runs: bool
) -> None:
    """Of one that is approved, and of one that is stale, also where nobody has tried to run it."""

    def ask(*words: str, code: int | None = 0) -> Said:
        return behind.call(*words, code=code)

    def look() -> str:
        said = ask("status", "orders")
        assert "plan expand" not in said.out, "it would be refused"
        (shown,) = ask("show", recovery, "--json").document["next_commands"]
        assert find_next(said) == shown, said.out
        return str(shown)

    recovery = approve_plan(behind.open(), plan(behind), by="ada").id
    assert look() == f"backlogctl run {recovery}"
    add_partition(behind)
    if runs:
        assert ask("run", recovery, "--json", code=None).error["code"] == "plan_stale"
    assert look() == f"backlogctl cancel {recovery}"
    assert follow(ask, recovery, first=ask("status", "orders")) == ["cancel R"]
    assert plan(behind).plan["partition_count"] == len(BEHIND) + 1
