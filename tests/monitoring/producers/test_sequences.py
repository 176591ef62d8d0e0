"""What is a break in a producer's numbering, and what is none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backlogctl.kafka.raw_fetch import FetchedBatches
from backlogctl.monitoring.producers.profile import BreakKind, Folding, SequenceBreak, Sequences
from backlogctl.values import OffsetRange
from tests.monitoring.producers.makers import Log, fold


def the_break(log: Log) -> SequenceBreak:
    (found,) = fold([log]).breaks
    return found


_STEPS = st.lists(
    st.tuples(
        st.integers(-1, 4),
        st.integers(1, 500),
        st.sampled_from(["data", "data", "commit", "abort", "control"]),
    ),
    max_size=40,
)


@given(_STEPS, st.integers(0, 40), st.integers(0, 2**31 - 1))
def test_no_break_in_a_healthy_log(
    steps: list[tuple[int, int, str]], since: int, first: int
) -> None:
    """Several producers; 3 and 4 are transactional, and 4 has an epoch for each transaction."""
    log, epochs = Log(), dict.fromkeys(range(-1, 5), 0)
    begun: set[int] = set()
    for producer, count, step in steps:
        is_transactional = producer >= 3
        if step == "data":
            start = None if producer in begun or producer == 4 else first
            log.append(
                producer, epochs[producer], count, transactional=is_transactional, sequence=start
            )
            begun.add(producer)
        elif is_transactional:
            log.append(producer, epochs[producer], 1, control=True)
            epochs[producer] += producer == 4
    log.headers = log.headers[since:]
    assert fold([log]).breaks == ()


def test_a_jump() -> None:
    log = Log()
    log.append(count=10)
    log.append(count=10, sequence=25)
    found = the_break(log)
    assert (found.kind, found.left_out) == (BreakKind.JUMP, 15)
    assert (found.before.offset, found.before.sequence) == (9, 9)
    assert (found.after.offset, found.after.sequence) == (10, 25)


def test_a_jump_over_the_last_number() -> None:
    log = Log()
    log.append(count=10, sequence=2**31 - 15)
    log.append(count=10, sequence=3)
    assert the_break(log).left_out == 8


def test_numbers_that_come_again() -> None:
    log = Log()
    log.append(count=10, sequence=50)
    log.append(count=10, sequence=55)
    found = the_break(log)
    assert (found.kind, found.left_out) == (BreakKind.JUMP, 0)


def test_a_restart() -> None:
    log = Log()
    log.append(count=10, sequence=50)
    log.append(count=10, sequence=0)
    assert the_break(log).kind is BreakKind.RESTART


def test_a_raised_epoch() -> None:
    log = Log()
    log.append(count=10)
    log.append(epoch=2, count=10)
    log.append(epoch=2, count=10)
    found = the_break(log)
    assert (found.kind, found.before.epoch, found.after.epoch) == (BreakKind.EPOCH, 0, 2)
    assert found.left_out is None


def test_producers_and_partitions_are_apart() -> None:
    one, other = Log(0), Log(1)
    for log in (one, other):
        log.append(1, count=7)
        log.append(2, count=3)
        log.append(1, count=7)
    assert fold([one, other]).breaks == ()


def test_nothing_is_compared_across_missing_offsets() -> None:
    log = Log()
    log.append(count=10)
    log.skip(5)
    log.append(count=10, sequence=15)
    log.append(count=10, sequence=30)
    profile = fold([log])
    assert [one.before.sequence for one in profile.breaks] == [24]
    assert profile.partitions[0].holes == 1


def test_nothing_is_compared_across_what_expired_meanwhile() -> None:
    log = Log()
    log.append(count=10)
    folding = Folding("orders", (OffsetRange(0, 0, 40),))
    folding.add(FetchedBatches(0, tuple(log.headers), 0, None, 10))
    folding.add(FetchedBatches(0, (), 0, OffsetRange(0, 10, 20), 20))
    log.skip(10)
    log.append(count=10, sequence=20)
    folding.add(FetchedBatches(0, tuple(log.headers[-1:]), 0, None, 30))
    profile = folding.freeze()
    assert profile.breaks == ()
    assert profile.partitions[0].passed_over == (OffsetRange(0, 10, 20),)
    assert profile.partitions[0].holes == 0


def test_compacted_topics_have_epochs_only() -> None:
    log = Log()
    log.append(count=10)
    log.append(count=10, sequence=25)
    log.append(epoch=1, count=10)
    assert [one.kind for one in fold([log], is_compacted=True).breaks] == [BreakKind.EPOCH]


def test_too_many_producers_are_forgotten_not_suspected() -> None:
    log, sequences = Log(), Sequences(most=3)
    for turn in range(3):
        for producer in range(5):
            log.append(producer, count=turn + 1)
    for header in log.headers:
        sequences.add(0, header)
    listed, left_out = sequences.list_producers()
    assert sequences.breaks == []
    assert len(listed) == 3
    assert sequences.forgotten == left_out == 12


def test_breaks_are_bounded() -> None:
    log = Log()
    for turn in range(1_200):
        log.append(count=1, sequence=3 * turn)
    profile = fold([log])
    assert len(profile.breaks) == 1_000
    assert profile.breaks_left_out == 199


def test_epochs_of_a_producer() -> None:
    log = Log()
    for epoch in range(40):
        log.append(1, epoch, 5, transactional=True)
        log.append(1, epoch, 1, control=True)
    (producer,) = fold([log]).producers
    assert producer.is_transactional
    assert (producer.batches, producer.messages) == (40, 200)
    assert [one.epoch for one in producer.epochs] == list(range(8, 40))
    assert producer.epochs_left_out == 8
    last = producer.epochs[-1]
    assert (last.first_offset, last.last_offset, last.messages) == (234, 238, 5)
    assert last.first_time is not None
