"""What expired and was no message: aborted ones and markers are never an exact loss (fault 91)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backlogctl.clock import Deadline, utc_now
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.monitoring.offsets.certainty import MAYBE_EMPTY, limit_certainty
from backlogctl.monitoring.offsets.lag import FirstMessage, read_firsts
from backlogctl.monitoring.offsets.observation import Observation, observe_stream
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.values import Cause, Certainty, Gap, GapState
from tests.conftest import MakeTopic
from tests.kit.kafka import StreamStub, leave_at, move_log_start, publish
from tests.kit.ledger import NOON, make_gap
from tests.kit.transactions import run_transactions
from tests.monitoring.live_watch import look

MAYBE = (Cause.EXPIRED, Certainty.BOUNDED, True)


def list_gaps(found: Observation | Ledger) -> list[tuple[int | None, int | None]]:
    gaps = found.gaps.list() if isinstance(found, Ledger) else found.gaps
    assert all((gap.cause, gap.certainty, gap.maybe_empty) == MAYBE for gap in gaps)
    return [(gap.start, gap.end) for gap in gaps]


@pytest.fixture
def stream(topic: MakeTopic, group: str) -> StreamStub:
    return StreamStub(topic(partitions=1), group)


def test_fault_91_the_last_marker_of_an_emptied_log_is_no_loss(
    properties: dict[str, str], stream: StreamStub, unique: str, tmp_path: Path
) -> None:
    """Its reader commits after each message, so it stands before the last marker."""
    end = run_transactions(properties, stream.topic, f"tx-{unique}", *[(1, True)] * 20)
    leave_at(properties, stream.group, stream.topic, {0: end - 1})
    place = f"sqlite:///{tmp_path}/ledger.db"
    with open_ledger(place) as ledger:
        assert look(ledger, properties, stream).lag == 0
    move_log_start(properties, stream.topic, {0: end})
    with open_ledger(place) as ledger:  # another process, which saw none of it
        status = look(ledger, properties, stream)
        assert (status.verdict, status.lost, ledger.gaps.list()) == (Verdict.OK, 0, ())
    with open_ledger(f"sqlite:///{tmp_path}/fresh.db") as fresh:  # nobody was there before
        status = look(fresh, properties, stream)
        assert list_gaps(fresh) == [(end - 1, end)]
        assert "1 message lost at most" in status.sentence
        assert f"1 offset of it {MAYBE_EMPTY}" in status.sentence


def test_fault_91_aborted_messages_are_no_loss_however_many(
    properties: dict[str, str], stream: StreamStub, unique: str, tmp_path: Path
) -> None:
    end = run_transactions(
        *(properties, stream.topic, f"tx-{unique}"), (2, True), (306, False), (200, False)
    )
    leave_at(properties, stream.group, stream.topic, {0: 3})
    place = f"sqlite:///{tmp_path}/ledger.db"
    with open_ledger(place) as ledger:
        status = look(ledger, properties, stream)
        assert (status.lag, status.verdict) == (0, Verdict.OK)
        topic_id = ledger.samples.history("orders")[-1].topic_id
        assert ledger.empties.list("orders") == {("orders", topic_id): {0: (3, end)}}
    move_log_start(properties, stream.topic, {0: end})
    with open_ledger(place) as ledger:
        assert look(ledger, properties, stream).lost == 0
        assert ledger.gaps.list() == ()
    with open_ledger(f"sqlite:///{tmp_path}/fresh.db") as fresh:
        observe_stream(fresh, stream, properties)
        assert list_gaps(fresh) == [(3, end)]
        (gap,) = fresh.gaps.list()
        assert gap.reason == f"{MAYBE_EMPTY}: it is written in transactions"


def test_fault_91_what_lies_behind_an_empty_range_is_lost_all_the_same(
    properties: dict[str, str], stream: StreamStub, unique: str, ledger: Ledger
) -> None:
    end = run_transactions(properties, stream.topic, f"tx-{unique}", (50, False), (10, True))
    leave_at(properties, stream.group, stream.topic, {0: 0})
    status = look(ledger, properties, stream)
    assert status.lag == end - 51, "what was aborted is none"
    assert status.partitions[0].committed == 0
    move_log_start(properties, stream.topic, {0: end})
    observe_stream(ledger, stream, properties)
    assert list_gaps(ledger) == [(51, end)]


def test_fault_91_messages_are_lost_exactly_where_nothing_else_can_be(
    properties: dict[str, str], stream: StreamStub, ledger: Ledger, tmp_path: Path
) -> None:
    observe_stream(ledger, stream, properties)
    publish(properties, stream.topic, {0: 30})
    leave_at(properties, stream.group, stream.topic, {0: 10})
    move_log_start(properties, stream.topic, {0: 20})
    with open_ledger(f"sqlite:///{tmp_path}/late.db") as late:
        (gap,) = observe_stream(late, stream, properties).gaps
        assert gap.certainty is Certainty.EXACT, "what survives is written without transactions"
    move_log_start(properties, stream.topic, {0: 30})
    (gap,) = observe_stream(ledger, stream, properties).gaps
    assert (gap.start, gap.end, gap.certainty) == (10, 30, Certainty.EXACT), "written just now"
    with open_ledger(f"sqlite:///{tmp_path}/fresh.db") as fresh:
        observe_stream(fresh, stream, properties)
        assert list_gaps(fresh) == [(10, 30)], "nobody knows when, nor by whom"
        (gap,) = fresh.gaps.list()
        assert "nothing survives that would show how it is written" in gap.reason


def test_fault_91_a_transaction_among_plain_messages_is_remembered(
    properties: dict[str, str], stream: StreamStub, unique: str, ledger: Ledger
) -> None:
    publish(properties, stream.topic, {0: 5})
    end = run_transactions(properties, stream.topic, f"tx-{unique}", (7, False))
    publish(properties, stream.topic, {0: 400})
    leave_at(properties, stream.group, stream.topic, {0: 2})
    move_log_start(properties, stream.topic, {0: end})
    observe_stream(ledger, stream, properties)
    assert list_gaps(ledger) == [(2, end)]


def test_a_place_that_has_expired_meanwhile_is_not_taken_for_empty(
    properties: dict[str, str], stream: StreamStub
) -> None:
    publish(properties, stream.topic, {0: 9})
    place = (stream.topic, 0)

    def read(offset: int) -> dict[tuple[str, int], FirstMessage | None]:
        limit = Deadline(30.0)
        return dict(read_firsts(properties, [(*place, offset)], limit, "topic").found)

    first = read(4)[place]
    assert first is not None
    assert first.offset == 4
    assert first.at is not None
    assert read(9) == {place: None}
    move_log_start(properties, stream.topic, {0: 9})
    assert read(4) == {}, "its messages are gone, and nobody read them"


# On record.


def make_doubtful(start: int, end: int) -> Gap:
    return limit_certainty(make_gap(start, end), "it is written in transactions")


def test_only_what_has_expired_is_doubted() -> None:
    doubtful = make_doubtful(10, 20)
    assert (doubtful.cause, doubtful.certainty, doubtful.maybe_empty) == MAYBE
    assert not doubtful.may_be_read
    assert limit_certainty(make_gap(10, 20), "") == make_gap(10, 20)
    skipped = make_gap(10, 20, cause=Cause.SKIPPED)
    assert limit_certainty(skipped, "it is written in transactions") == skipped


def test_what_may_be_no_messages_is_a_gap_of_its_own(ledger: Ledger) -> None:
    exact = ledger.gaps.record(make_gap(10, 20))
    doubtful = ledger.gaps.record(make_doubtful(10, 40))
    assert (doubtful.start, doubtful.end, doubtful.maybe_empty) == (20, 40, True)
    again = ledger.gaps.record(make_doubtful(10, 50))
    assert (again.id, again.end) == (doubtful.id, 50), "it grows"
    assert ledger.gaps.get(exact.id).certainty is Certainty.EXACT
    # What is found out later makes it exact.
    ledger.gaps.record(make_gap(10, 50))
    known = ledger.gaps.get(doubtful.id)
    assert (known.certainty, known.maybe_empty) == (Certainty.EXACT, False)


def test_a_gap_that_may_be_read_in_part_is_told_when_it_only_may_be_empty(ledger: Ledger) -> None:
    live = replace(make_gap(10, 20), certainty=Certainty.BOUNDED, reason="the group has members")
    kept = ledger.gaps.record(live)
    assert kept.may_be_read
    ledger.gaps.record(make_doubtful(10, 20))
    known = ledger.gaps.get(kept.id)
    assert (known.certainty, known.maybe_empty, known.state) == (
        *(Certainty.BOUNDED, True, GapState.OPEN),
    )
    assert known.reason.startswith("the group has members; may be aborted messages")


def test_the_last_empty_range_of_a_partition_is_kept(ledger: Ledger) -> None:
    ledger.empties.note("orders", "id-1", {0: (39, 40), 3: (7, 900)}, NOON)
    ledger.empties.note("orders", "id-1", {0: (39, 346)}, utc_now())
    ledger.empties.note("bills", "id-1", {0: (1, 2)}, NOON)
    ledger.empties.note("orders", "id-2", {}, NOON)
    known = {("orders", "id-1"): {0: (39, 346), 3: (7, 900)}}
    assert ledger.empties.list("orders") == known
    assert ledger.empties.list(["orders", "bills"]) == {**known, ("bills", "id-1"): {0: (1, 2)}}
