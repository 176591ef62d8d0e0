"""Marks in Redis: one attempt at a time; what a crash or a lost Redis costs is told, and no more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from confluent_kafka import Message

from backlogctl.errors import UsageError
from backlogctl_delivery.idempotent.attempts import (
    InProgress,
    LeaseLost,
    MarksAway,
    NoMessageId,
    PayloadConflict,
)
from backlogctl_delivery.idempotent.redis import RedisMarks
from backlogctl_delivery.stamps import MESSAGE_ID
from tests.kafka_tools import wait_until
from tests.redis_server import EmbeddedRedis

# The order of the blocks is what is tested.
# ruff: noqa: PT012, SIM117


LONG, SHORT = timedelta(minutes=5), timedelta(milliseconds=50)
NO_WAIT = timedelta(0)


class WorkFailed(Exception):
    pass


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    with redis_server.connect() as client:
        yield client


def make_marks(client: redis.Redis, consumer: str, **settings: Any) -> RedisMarks:
    given = {"lease": LONG, "keep": LONG, "when_away": "closed", "wait": NO_WAIT, **settings}
    return RedisMarks(client, consumer, **given)


def make_message(message_id: bytes = b"m-1", value: bytes = b"v") -> Message:
    return Message(topic="orders", partition=2, value=value, headers=[(MESSAGE_ID, message_id)])


def take(marks: RedisMarks, message: Any) -> tuple[bool, bool]:
    with marks.handle_once(message) as attempt:
        return attempt.is_first, attempt.was_begun


def test_what_was_done_is_not_done_again_and_marks_end(client: redis.Redis, unique: str) -> None:
    marks, message = make_marks(client, unique), make_message()
    assert [take(marks, message) for _ in range(3)] == [
        (True, False),
        (False, False),
        (False, False),
    ]
    assert take(make_marks(client, f"{unique}-2"), message) == (True, False), "another consumer"
    assert take(make_marks(client, unique), make_message(b"m-2")) == (True, False)
    # redis-py types its answers for both of its clients.
    kept: Any = client
    (key,) = kept.keys(f"once:{unique}:m-1")
    assert 0 < kept.pttl(key) <= LONG / timedelta(milliseconds=1)
    assert b"v" not in kept.hvals(key), "only a hash of the payload is kept"
    brief = make_marks(client, unique, lease=SHORT, keep=SHORT)
    assert take(brief, "m-3") == (True, False)
    wait_until(lambda: take(brief, "m-3")[0], what="the mark has ended")


def test_fault_54_a_worker_that_died_is_followed_when_its_lease_ends(
    client: redis.Redis, unique: str
) -> None:
    """Whether its work was done nobody knows: the next one is told."""
    dead = make_marks(client, unique, lease=SHORT)
    block = dead.handle_once("m-1")
    assert block.__enter__().is_first  # and never ends
    waits = make_marks(client, unique, wait=timedelta(minutes=1))
    assert take(waits, "m-1") == (True, True)
    assert take(waits, "m-1") == (False, False)


def test_fault_54_work_that_fails_gives_its_turn_up(client: redis.Redis, unique: str) -> None:
    marks = make_marks(client, unique)
    with pytest.raises(WorkFailed), marks.handle_once("m-1") as attempt:
        raise WorkFailed if attempt.is_first else AssertionError
    assert take(marks, "m-1") == (True, True)


def test_fault_55_the_same_id_at_the_same_time_has_one_turn(
    client: redis.Redis, unique: str
) -> None:
    marks = make_marks(client, unique)
    with marks.handle_once("m-1") as attempt:
        assert attempt.is_first
        with pytest.raises(
            InProgress, match=r"m-1 .*another worker has its attempt, for"
        ) as raised:
            take(marks, "m-1")
        assert raised.value.retryable
    firsts: list[int] = []
    gate = threading.Barrier(4)
    patient = make_marks(client, unique, wait=timedelta(minutes=1))

    def work() -> None:
        gate.wait(60)
        for number in range(25):
            firsts.extend([number] if take(patient, f"n-{number}")[0] else [])

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert sorted(firsts) == list(range(25))


def test_fault_55_a_late_owner_marks_nothing(client: redis.Redis, unique: str) -> None:
    marks, late = make_marks(client, unique), make_marks(client, unique, lease=SHORT)
    other = make_marks(client, unique, wait=timedelta(minutes=1)).handle_once("m-1")
    with pytest.raises(LeaseLost, match="done twice"), late.handle_once("m-1") as attempt:
        assert attempt.is_first
        taken = other.__enter__()
        assert (taken.is_first, taken.was_begun) == (True, True)
    with pytest.raises(InProgress):  # the late one has neither marked nor released it
        take(marks, "m-1")
    other.__exit__(None, None, None)
    assert take(marks, "m-1") == (False, False)
    with pytest.raises(WorkFailed), late.handle_once("m-2") as attempt:
        third = make_marks(client, unique, wait=timedelta(minutes=1)).handle_once("m-2")
        assert third.__enter__().is_first
        raise WorkFailed if attempt.is_first else AssertionError
    with pytest.raises(InProgress):
        take(marks, "m-2")


def test_the_same_id_with_another_payload_is_a_conflict(client: redis.Redis, unique: str) -> None:
    marks = make_marks(client, unique)
    with marks.handle_once(make_message()) as attempt:
        assert attempt.is_first
        with pytest.raises(PayloadConflict):
            take(marks, make_message(value=b"secret"))
    with pytest.raises(PayloadConflict, match="with another payload") as raised:
        take(marks, make_message(value=b"secret"))
    assert "secret" not in str(raised.value)
    assert take(marks, make_message()) == take(marks, "m-1") == (False, False)
    with pytest.raises(PayloadConflict), marks.handle_once("m-1", b"other"):
        pytest.fail("the block was entered")


def test_an_answer_that_was_lost_changes_nothing(client: redis.Redis, unique: str) -> None:
    """The client asks again with the same words."""
    marks = make_marks(client, unique)
    keys, words = [f"once:{unique}:m-1"], ["one", "", "60000", "60000"]
    assert [marks._begin(keys, words) for _ in range(2)] == [[b"first", 0]] * 2
    assert [marks._end(keys, words[:3]) for _ in range(2)] == [1, 1]
    assert marks._begin(keys, words) == [b"done", 0]


def test_fault_56_redis_loses_its_data_and_the_message_is_handled_once_more(
    client: redis.Redis, unique: str
) -> None:
    marks = make_marks(client, unique)
    effects = [take(marks, "m-1")[0] for _ in range(2)]
    client.delete(f"once:{unique}:m-1")
    effects += [take(marks, "m-1")[0] for _ in range(2)]
    assert effects == [True, False, True, False]
    with marks.handle_once("m-2") as attempt:  # lost while the work is done: marked all the same
        assert attempt.is_first
        client.delete(f"once:{unique}:m-2")
    assert take(marks, "m-2") == (False, False)


def test_fault_56_redis_is_away_open_or_closed_and_comes_back_empty(
    unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "backlogctl_delivery.idempotent.redis")
    with EmbeddedRedis() as server, server.connect() as client:
        opened = make_marks(client, unique, when_away="open")
        closed = make_marks(client, unique)
        assert take(opened, "m-1") == (True, False)
        with closed.handle_once("m-2") as attempt:
            assert attempt.is_first
        with pytest.raises(MarksAway, match="Redis cannot be used") as raised:
            with closed.handle_once("m-3") as attempt:
                assert attempt.is_first
                server.kill()
        assert raised.value.retryable
        with opened.handle_once("m-1") as attempt:
            assert (attempt.is_first, attempt.is_marked) == (True, False)
        assert take(opened, "m-4") == (True, False)
        assert opened.unmarked == 2
        with pytest.raises(MarksAway), closed.handle_once("m-2"):
            pytest.fail("the block was entered")
        server.start()
        for marks in (opened, closed):
            assert [take(marks, f"m-{marks.unmarked}")[0] for _ in range(2)] == [True, False]
    ours = [
        record for record in caplog.records if record.name == "backlogctl_delivery.idempotent.redis"
    ]
    told = [record.getMessage() for record in ours]
    assert len(told) == 2, "once when it goes, once when it is back"
    assert "repeats are done again" in told[0]


def test_what_stays_wrong_is_never_taken_for_away(redis_server: EmbeddedRedis, unique: str) -> None:
    with redis_server.connect("wrong") as client:
        marks = make_marks(client, unique, when_away="open")
        with pytest.raises(redis.AuthenticationError):
            take(marks, "m-1")


def test_settings_without_a_default_and_careless_blocks_are_refused(
    client: redis.Redis, unique: str
) -> None:
    with pytest.raises(TypeError, match="when_away"):
        RedisMarks(client, unique, lease=LONG, keep=LONG)  # type: ignore[call-arg]
    for wrong in ({"when_away": ""}, {"lease": NO_WAIT}, {"keep": SHORT}):
        with pytest.raises(UsageError, match="are needed"):
            make_marks(client, unique, **wrong)
    marks = make_marks(client, unique)
    with pytest.raises(UsageError, match="nobody asked"), marks.handle_once("m-1"):
        pass
    with pytest.raises(NoMessageId):
        take(marks, Message(topic="orders", partition=0, value=b"v"))
    unmarked = make_marks(client, unique, without_id="unmarked")
    assert take(unmarked, Message(topic="orders", partition=0, value=b"v")) == (True, False)
