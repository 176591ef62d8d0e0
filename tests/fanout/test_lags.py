"""What is left in both topics, what hides it, and when a group or a disk is safe to touch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable, HangingTransaction, KafkaFailure
from backlogctl.fanout import unread
from backlogctl.fanout.disk import (
    DiskCheck,
    PartitionBacklog,
    combine_checks,
    estimate_copy,
    estimate_hold,
    measure_growth,
)
from backlogctl.fanout.quiet import (
    GroupStillCommits,
    await_decided,
    await_empty,
    await_quiet,
)
from backlogctl.fanout.relay.guard import GroupGuard
from backlogctl.fanout.unread import Lags, count_records, find_unread, read_lags
from backlogctl.kafka.admin import describe_group_state, list_offsets
from backlogctl.kafka.clients import Admin, make_admin, make_consumer, make_producer
from backlogctl.kafka.errors import GroupActive
from backlogctl.kafka.groups import read_standing
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlogctl.kafka.markers import find_hidden
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import PartitionSample, Sample
from tests.conftest import MakeTopic
from tests.fanout.relay.conftest import KEPT
from tests.fanout.relay.doing import fill, open_transaction
from tests.kit.kafka import (
    join,
    move_log_start,
    properties_of,
    publish,
    read_all,
    set_offsets_raw,
    wait_until,
)
from tests.kit.ledger import NOON


def reading(
    admin: Admin,
    source: str,
    partitions: int,
    temporary: str,
    temporary_partitions: int,
    group: str,
) -> Callable[..., Lags]:
    return partial(
        read_lags,
        admin,
        source=source,
        group=group,
        partitions=partitions,
        temporary=temporary,
        recovery_group=f"{group}.recovery",
        temporary_partitions=temporary_partitions,
    )


def test_lags_are_counted_to_the_last_stable_offset_and_never_negative(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    source, temporary = topic(2, KEPT), topic(3, KEPT)  # the messages are years old
    recovery = f"{group}.recovery"
    read = reading(make_admin(properties), source, 2, temporary, 3, group)
    assert read() == Lags({0: 0, 1: 0}, {0: 0, 1: 0, 2: 0})  # fault 27
    fill(properties, source, {0: 10, 1: 5})
    stranger = open_transaction(properties, f"stranger-{source}", source, 0)
    set_offsets_raw(properties, group, source, {0: 4})
    fill(properties, temporary, {0: 6, 1: 1}, transaction=temporary)
    set_offsets_raw(properties, recovery, temporary, {0: 2, 1: 2, 2: 0})
    assert (lags := read()) == Lags({0: 6, 1: 5}, {0: 5, 1: 0, 2: 0})
    assert (lags.source_total, lags.temporary_total) == (11, 5)
    # The marker behind the last message is no lag.
    assert read(last_offsets={0: 5, 1: 0}).temporary == {0: 4, 1: 0, 2: 0}
    stranger.abort_transaction(90)


def test_fault_116_what_retention_removed_is_no_lag_and_not_unread(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    admin, name = make_admin(properties), topic(2, KEPT)
    fill(properties, name, {0: 10, 1: 10})
    set_offsets_raw(properties, group, name, {0: 4})
    move_log_start(properties, name, {0: 10, 1: 7})
    standing = read_standing(admin, group, name, range(2), Deadline(30))
    assert standing.lag == {0: 0, 1: 3}
    assert find_unread(admin, properties, name, group, 2, expires=True) == {1: 7}
    with pytest.raises(KafkaFailure):  # of a temporary topic: somebody deleted it
        find_unread(admin, properties, name, group, 2, Deadline(10))


def test_fault_74_an_end_below_what_is_known_is_a_failed_reading(
    properties: dict[str, str], topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a broker answers that has not recovered its ends: nothing would seem to be left."""
    admin = make_admin(properties)
    source, temporary = topic(1, KEPT), topic(2, KEPT)
    recovery = f"{group}.recovery"
    read = reading(admin, source, 1, temporary, 2, group)
    fill(properties, source, {0: 10})
    fill(properties, temporary, {0: 5})
    set_offsets_raw(properties, recovery, temporary, {0: 7})
    with pytest.raises(KafkaFailure, match="ends at 5, below the committed offset 7") as caught:
        read(limit=Deadline(3))
    assert caught.value.retryable
    with pytest.raises(KafkaFailure, match="ends at 5, below the committed offset 7"):
        find_unread(admin, properties, temporary, recovery, 2, Deadline(3))
    fill(properties, temporary, {0: 4})  # it is there after all
    assert read().temporary == {0: 2, 1: 0}
    # What the relay says it has written counts as well.
    with pytest.raises(KafkaFailure, match="ends at 0, below the known written offset 3"):
        read(limit=Deadline(3), last_offsets={1: 2})
    # It stays: told as what it is, and not asked for ever.
    monkeypatch.setattr("backlogctl.kafka.groups.TRUNCATED_SECONDS", 0.5)
    with pytest.raises(KafkaFailure, match="messages were lost") as caught:
        read(last_offsets={1: 2})
    assert not caught.value.retryable


def test_an_open_transaction_is_waited_for_and_named(
    kafka: EmbeddedKafka, topic: MakeTopic, unique: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=2)
    await_decided(properties, name, 2, lambda: None, within=90)
    settings = {"transactional.id": f"open-{unique}", "transaction.timeout.ms": 600_000}
    producer = make_producer(properties, settings)
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=1)
    assert producer.flush(90) == 0
    publish(properties, name, {1: 3})  # committed, and hidden behind it
    assert find_hidden(properties, name, {0: None, 1: None}) == {1: 0}
    with pytest.raises(HangingTransaction, match="partitions 1 at offset 0"):
        await_decided(properties, name, 2, lambda: None, within=0.3)
    producer.commit_transaction(90)
    await_decided(properties, name, 2, lambda: None, within=90)
    assert find_hidden(properties, name, {0: None, 1: None}) == {}


def test_fault_11_a_commit_without_a_leader_is_left_out_and_seen(tmp_path: Path) -> None:
    """KAFKA-20734: a partition that has no leader when a transaction commits gets no marker.

    The commit is answered all the same. What lies there is undecided, and an abort of the next
    transaction takes it along: only a count of what is there shows that.
    """
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=2, heap="256m") as kafka:
        properties = properties_of(kafka.bootstrap)
        admin = make_admin(properties)
        places = [[2], [1]]  # of the partitions 0 and 1; the first broker is the controller
        made = admin.create_topics([NewTopic("t", len(places), replica_assignment=places)])
        made["t"].result(30)

        def find_leader() -> int:
            known = admin.list_topics("t", 10).topics["t"].partitions
            return known[0].leader if 0 in known else -1

        def count() -> dict[int, int]:
            return count_records(properties, "t", list_offsets(admin, "t", [0, 1], "latest"))

        wait_until(lambda: find_leader() == 2, what="partition 0 has a leader")
        producer = make_producer(properties, {"transactional.id": "t"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("t", b"committed", partition=partition)
        assert producer.flush(60) == 0
        kafka.kill(2)
        wait_until(lambda: find_leader() == -1, what="partition 0 has no leader")
        producer.commit_transaction(60)
        kafka.restart(2)
        wait_until(lambda: find_leader() == 2, what="partition 0 has a leader again")
        with pytest.raises(HangingTransaction, match="partitions 0 at offset 0"):
            await_decided(admin, "t", 2, lambda: None, within=5)
        producer.begin_transaction()
        producer.produce("t", b"aborted", partition=0)
        assert producer.flush(60) == 0
        producer.abort_transaction(60)
        await_decided(admin, "t", 2, lambda: None)
        assert count() == {0: 0, 1: 1}, "Kafka mended it: take it out of the docs' limits"


UNKNOWN = LogDirs(None, "nobody tells")


def disks(*usable: int | None, sizes: dict[int, int] | None = None) -> LogDirs:
    """Brokers with so much room; every one has every partition."""
    return LogDirs(
        tuple(BrokerLogDirs(n, room, 10**15, sizes or {}) for n, room in enumerate(usable))
    )


def test_copy_needs_the_backlogs_share_of_the_bytes() -> None:
    seen = disks(10_000, 5_000, 20_000, sizes={0: 1000, 1: 4000})
    backlog = [PartitionBacklog(0, 50, 100, 200), PartitionBacklog(1, 100, 0, 100)]
    check = estimate_copy(seen, backlog, replication=1)
    assert check == DiskCheck(
        1800, 5_000, True, "each broker needs about 1.8 kB, and the fullest one has 5.0 kB left"
    )
    thrice = estimate_copy(seen, backlog, replication=3)
    assert (thrice.needed_bytes, thrice.enough) == (5400, False)


def test_what_is_not_known_is_not_guessed() -> None:
    backlog = [PartitionBacklog(0, 50, 100, 200)]
    assert estimate_copy(UNKNOWN, backlog, replication=1) == DiskCheck(
        None, None, None, "nobody tells"
    )
    lost = estimate_copy(disks(5000, sizes={1: 1}), backlog, replication=1)
    assert (lost.enough, lost.usable_bytes) == (None, 5000)
    assert "partition 0" in lost.reason
    old = estimate_copy(disks(5000, None, sizes={0: 200}), backlog, replication=2)
    assert (old.needed_bytes, old.usable_bytes, old.enough) == (120, None, None)
    assert "before 3.3" in old.reason


def test_hold_needs_what_is_produced_meanwhile() -> None:
    hour = timedelta(hours=1)
    check = estimate_hold(disks(10**6, 10**6), 100.0, hour, replication=1)
    assert (check.needed_bytes, check.enough) == (216_000, True)
    assert estimate_hold(disks(100, 100), 100.0, hour, replication=1).enough is False
    assert estimate_hold(disks(100), None, hour, replication=1).enough is None
    assert estimate_hold(UNKNOWN, 100.0, hour, replication=1).reason == "nobody tells"


def test_several_needs_share_the_room() -> None:
    yes, no = DiskCheck(600, 1000, True, "a"), DiskCheck(700, 1000, True, "b")
    unknown = DiskCheck(None, 1000, None, "c")
    assert combine_checks(yes).enough is True
    both = combine_checks(yes, no)
    assert (both.needed_bytes, both.enough) == (1300, False)
    assert combine_checks(yes, unknown) == DiskCheck(None, 1000, None, "c")
    assert combine_checks(yes, no, unknown).enough is False


def test_growth_is_measured_between_samples() -> None:
    def sample(seconds: int, *high: int) -> Sample:
        parts = tuple(PartitionSample(n, 0, 0, at, at) for n, at in enumerate(high))
        at = NOON + timedelta(seconds=seconds)
        return Sample("orders", "main", "orders", "g", "id", at, parts)

    seen = disks(1, sizes={0: 1000, 1: 4000})
    assert measure_growth(seen, [sample(0, 50, 50), sample(100, 100, 50)]) == 5.0
    assert measure_growth(seen, [sample(0, 50), sample(10, 100)]) is None, "too short to tell"
    assert measure_growth(seen, [sample(0, 50)]) is None
    other = replace(sample(0, 5), topic_id="other")
    assert measure_growth(seen, [other, sample(100, 5)]) is None
    assert measure_growth(UNKNOWN, [sample(0, 50), sample(100, 100)]) is None
    assert measure_growth(UNKNOWN, [sample(0, 50), sample(100, 50)]) == 0.0


backlogs = st.lists(
    st.builds(
        lambda number, low, held, lag: PartitionBacklog(number, lag, low, low + held),
        st.integers(0, 5),
        st.integers(0, 10**9),
        st.integers(0, 10**9),
        st.integers(0, 2 * 10**9),
    ),
    max_size=6,
    unique_by=lambda part: part.partition,
)
sizes_ = st.fixed_dictionaries({number: st.integers(0, 10**13) for number in range(6)})


@given(
    backlogs, sizes_, st.lists(st.integers(0, 10**14), min_size=1, max_size=5), st.integers(1, 5)
)
def test_estimate_is_bounded_and_never_flatters(
    backlog: list[PartitionBacklog], sizes: dict[int, int], rooms: list[int], replication: int
) -> None:
    seen = disks(*rooms, sizes=sizes)
    check = estimate_copy(seen, backlog, replication=replication)
    assert check.needed_bytes is not None
    assert check.usable_bytes == min(rooms)
    assert check.enough is (check.needed_bytes <= min(rooms))
    whole = sum(sizes[part.partition] for part in backlog)
    share = min(1.0, replication / len(rooms))
    assert 0 <= check.needed_bytes <= whole * share * 1.2 + 1
    # Who has read everything needs nothing; who has read nothing needs all of it.
    nothing = [replace(part, lag=0) for part in backlog]
    assert estimate_copy(seen, nothing, replication=replication).needed_bytes == 0
    further = [replace(part, lag=part.lag + 1000) for part in backlog]
    more = estimate_copy(seen, further, replication=replication).needed_bytes
    assert more is not None
    assert more >= check.needed_bytes
    one_more = estimate_copy(seen, backlog, replication=replication + 1).needed_bytes
    assert one_more is not None
    assert one_more >= check.needed_bytes


def test_a_group_that_is_empty_or_unknown_is_quiet(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(2)
    began = time.monotonic()
    assert await_counted(properties, group, name) >= 3
    set_offsets_raw(properties, group, name, {0: 3})
    # One look before, one after, one for each quarter of a second: what it waits for is not 5.5 s.
    assert 3 <= await_counted(properties, group, name) <= 5
    assert time.monotonic() - began >= 1.2


def await_counted(properties: dict[str, str], group: str, topic: str) -> int:
    """Waits for 0.6 s of quiet; how often it looked whether it has to stop."""
    looks: list[None] = []
    await_quiet(properties, group, topic, 2, lambda: looks.append(None), within=90, quiet=0.6)
    return len(looks)


def test_fault_66_a_consumer_that_assigns_its_partitions_is_noticed(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(2)
    publish(properties, name, {0: 100})
    consumer = make_consumer(properties, {"group.id": group})
    place = TopicPartition(name, 0, 0)
    consumer.assign([place])

    def go_on() -> None:
        """It commits while it is waited for."""
        place.offset += 1
        consumer.commit(offsets=[place], asynchronous=False)

    with pytest.raises(GroupStillCommits, match=r"partitions 0: .* assigns"):
        await_quiet(properties, group, name, 2, go_on, within=90, quiet=2.0)
    consumer.close()


def test_who_joins_while_it_is_watched_is_named(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    """Also where it has committed: it does not assign its partitions itself."""
    properties, name = properties_of(kafka.bootstrap), topic(1)
    publish(properties, name, {0: 100})
    joined: list[Consumer] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:  # the first look is before the group was seen empty
            joined.append(join(properties, group, name, client_id="orders-7"))
            place = TopicPartition(name, 0, 7)
            joined[0].commit(offsets=[place], asynchronous=False)

    looks: list[None] = []
    with pytest.raises(GroupActive, match="orders-7 at"):
        await_quiet(properties, group, name, 1, look, within=0.5, quiet=0.6)
    joined[0].close()


def test_the_members_that_do_not_leave_are_named(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(1)
    consumer = join(properties, group, name, client_id="orders-7")
    with pytest.raises(GroupActive, match=r"within 0\.5 s; still there: orders-7 at"):
        await_quiet(properties, group, name, 1, lambda: None, within=0.5, quiet=0.1)
    leaving = threading.Timer(0.5, consumer.close)
    leaving.start()
    await_quiet(properties, group, name, 1, lambda: None, within=90, quiet=0.1)
    leaving.join()


def test_a_guard_of_a_run_that_died_is_waited_for_longer(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(1)
    guard = GroupGuard(properties, group, name, 1, "r-1")
    guard.join(lambda: None)
    leaving = threading.Timer(1.0, guard.leave)
    leaving.start()
    await_quiet(properties, group, name, 1, lambda: None, within=0.2, quiet=0.1)
    leaving.join()


def test_what_stops_the_run_stops_the_waiting(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    def look() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await_quiet(properties, group, topic(1), 1, look, within=5)


def test_static_members_are_waited_for_until_their_session_ends(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A static member that closes does not leave (KIP-345)."""
    properties, name = properties_of(kafka.bootstrap), topic(1)
    settings = {"group_instance_id": "one", "session_timeout_ms": "6000"}
    member = join(properties, group, name, **settings)
    (found,) = describe_group_state(properties, group).members
    assert found.instance == "one"
    member.close()
    await_empty(make_admin(properties), group, lambda: None, within=0.5)
    monkeypatch.setattr("backlogctl.fanout.quiet.STATIC_SECONDS", 0.5)
    member = join(properties, group, name, **settings)
    with pytest.raises(GroupActive) as caught:
        await_empty(make_admin(properties), group, lambda: None, within=0.5)
    assert "session.timeout.ms" in caught.value.hint
    member.close()


def test_a_partition_that_was_never_written_is_read(
    admin: Admin, properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(2)
    assert find_unread(admin, properties, name, group, 2) == {}
    assert count_records(properties, name, {0: 0, 1: 0}) == {0: 0, 1: 0}
    assert count_records(properties, name, {}) == {}


def test_markers_and_aborted_records_are_read_and_one_message_is_not(
    admin: Admin, properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(3, {"retention.ms": "-1"})
    fill(properties, name, {0: 7, 1: 3, 2: 2}, transaction=name)
    await_decided(admin, name, 3, lambda: None)  # a commit is answered before its markers
    set_offsets_raw(properties, group, name, {0: 7, 1: 3, 2: 2})
    ends = list_offsets(admin, name, range(3), "latest")
    assert ends == {0: 8, 1: 4, 2: 3}  # a marker each, so the lag is one
    assert find_unread(admin, properties, name, group, 3) == {}
    fill(properties, name, {0: 20, 2: 1}, first=100, transaction=name, commit=False)
    await_decided(admin, name, 3, lambda: None)
    assert find_unread(admin, properties, name, group, 3) == {}
    fill(properties, name, {1: 5}, first=200, transaction=name)
    await_decided(admin, name, 3, lambda: None)
    assert find_unread(admin, properties, name, group, 3) == {1: 4}
    set_offsets_raw(properties, group, name, {0: 6})
    assert find_unread(admin, properties, name, group, 3) == {0: 6, 1: 4}
    # Without a commit nothing is read.
    assert find_unread(admin, properties, name, f"{group}-2", 3) == {0: 0, 1: 0, 2: 0}


def test_what_is_undecided_is_not_counted_and_not_waited_for(
    admin: Admin, properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(1, {"retention.ms": "-1"})
    fill(properties, name, {0: 5})
    set_offsets_raw(properties, group, name, {0: 5})
    stranger = open_transaction(properties, f"stranger-{name}", name, 0)
    assert find_unread(admin, properties, name, group, 1) == {}
    stranger.commit_transaction(90)
    await_decided(admin, name, 1, lambda: None)
    assert find_unread(admin, properties, name, group, 1) == {0: 5}


def test_records_are_counted_as_a_reader_sees_them(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name = topic(3, {"retention.ms": "-1"})
    for first, commit in ((0, True), (5000, False), (10_000, True), (15_000, False)):
        fill(properties, name, {0: 400, 1: 90}, first=first, transaction=name, commit=commit)
    fill(properties, name, {0: 6000}, first=20_000)
    ends = list_offsets(properties, name, range(3), "latest")
    messages = read_all(properties, name, range(3))
    places = [message.partition() for message in messages]
    assert count_records(properties, name, ends) == {p: places.count(p) for p in range(3)}
    # Ends within a transaction, an aborted one, on a marker, behind data that goes on.
    for end in (1, 399, 400, 401, 402, 600, 802, 803, 1000, 1604, 1605, 4000, 7603):
        wanted = sum(m.partition() == 0 and (m.offset() or 0) < end for m in messages)
        assert count_records(properties, name, {0: end, 1: 0}) == {0: wanted, 1: 0}, end


def test_fault_28_a_reading_that_comes_to_no_end_is_an_error(
    properties: dict[str, str], topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1, KEPT)
    monkeypatch.setattr(unread, "IDLE_SECONDS", 0.5)
    fill(properties, name, {0: 5})
    with pytest.raises(ClusterUnreachable, match="to the end"):
        count_records(properties, name, {0: 50})
