"""What MariaDB does otherwise, and marks in Redis: one attempt at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from confluent_kafka import Message
from sqlalchemy.orm import Session

from backlogctl.errors import UsageError
from backlogctl_delivery.idempotent.attempts import (
    InProgress,
    LeaseLost,
    MarksAway,
    NoMessageId,
    PayloadConflict,
)
from backlogctl_delivery.idempotent.redis import RedisMarks
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.stamps import MESSAGE_ID
from tests.crash.delivery.rival import WAITS
from tests.delivery.kit import WorkFailed, counted, list_marks, list_own, make_marks
from tests.kit.kafka import run_together, wait_until
from tests.kit.services import EmbeddedRedis

# The order of the blocks is what is tested.
# ruff: noqa: PT012, SIM117


# InnoDB: one of two transactions was ended; it waited too long; its snapshot is too old.
DEADLOCK, LOCK_TIMEOUT, CHANGED_SINCE = 1213, 1205, 1020


@pytest.fixture
def engine(mariadb_url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(mariadb_url)
    with made.begin() as connection:
        connection.execute(sa.text("CREATE TABLE work (id VARCHAR(40) PRIMARY KEY, n INT)"))
        connection.execute(sa.text("INSERT INTO work VALUES ('a', 0), ('b', 0)"))
    yield made
    made.dispose()


@pytest.fixture
def marks(engine: sa.Engine) -> Marks:
    marks = Marks("handled")
    marks.create_tables(engine)
    return marks


def handle(marks: Marks, connection: sa.Connection, message_id: str) -> bool:
    with marks.handle_once(connection, message_id) as attempt:
        return attempt.is_first


def count_up(connection: Any, row: str) -> None:
    connection.execute(sa.text("UPDATE work SET n = n + 1 WHERE id = :row"), {"row": row})


def number_of(error: BaseException) -> int:
    assert isinstance(error, sa.exc.DBAPIError)
    assert error.orig is not None
    return int(error.orig.args[0])


def end_by_deadlock(engine: sa.Engine, mine: sa.Connection) -> Callable[[], None]:
    """Gives what makes InnoDB end the transaction of `mine`, which has row b and wants row a."""
    other = engine.connect()
    # InnoDB ends the one that has changed less.
    other.execute(sa.text("INSERT INTO work SELECT seq, 0 FROM seq_1_to_200"))
    count_up(other, "a")

    def wait() -> None:
        count_up(other, "b")
        other.rollback()
        other.close()

    thread = threading.Thread(target=wait)

    def end() -> None:
        thread.start()

        def is_waiting() -> bool:
            with engine.connect() as connection:
                return int(connection.execute(WAITS).scalar_one()) > 0

        wait_until(is_waiting, what="the other one waits for row b")
        try:
            count_up(mine, "a")
        finally:
            thread.join(60)

    return end


def test_fault_54_a_deadlock_in_a_batch_is_never_committed_without_its_beginning(
    engine: sa.Engine, marks: Marks
) -> None:
    """InnoDB ends all of the transaction: a caller that goes on would lose what came before."""
    with engine.connect() as connection:
        assert handle(marks, connection, "m-1")
        count_up(connection, "b")
        end = end_by_deadlock(engine, connection)
        with pytest.raises(sa.exc.OperationalError) as raised:
            with marks.handle_once(connection, "m-2") as attempt:
                assert attempt.is_first
                end()
        assert number_of(raised.value) == DEADLOCK
        with pytest.raises(sa.exc.PendingRollbackError):
            handle(marks, connection, "m-3")
        with pytest.raises(sa.exc.InvalidRequestError):
            connection.commit()
    assert list_marks(engine, marks) == []


def test_fault_54_the_same_with_a_session(engine: sa.Engine, marks: Marks) -> None:
    with Session(engine) as session:
        with marks.handle_once(session, "m-1") as attempt:
            assert attempt.is_first
        count_up(session, "b")
        end = end_by_deadlock(engine, session.connection())
        with pytest.raises(sa.exc.OperationalError) as raised:
            with marks.handle_once(session, "m-2") as attempt:
                assert attempt.is_first
                end()
        assert number_of(raised.value) == DEADLOCK
        with pytest.raises(sa.exc.InvalidRequestError):
            session.commit()
    assert list_marks(engine, marks) == []
    with Session(engine) as session, session.begin():  # the connection is used again
        for message_id in ("m-1", "m-2"):
            with marks.handle_once(session, message_id) as attempt:
                assert attempt.is_first
    assert list_marks(engine, marks) == ["m-1", "m-2"]


def test_fault_54_a_deadlock_that_the_block_swallows_is_told(
    engine: sa.Engine, marks: Marks
) -> None:
    with engine.connect() as connection:
        assert handle(marks, connection, "m-1")
        count_up(connection, "b")
        end = end_by_deadlock(engine, connection)
        with pytest.raises(UsageError, match="was ended within the block"):
            with marks.handle_once(connection, "m-2") as attempt:
                assert attempt.is_first
                with pytest.raises(sa.exc.OperationalError):
                    end()
        with pytest.raises(sa.exc.InvalidRequestError):
            connection.commit()
    assert list_marks(engine, marks) == []


def test_fault_55_two_batches_in_opposite_order_lose_nothing(
    engine: sa.Engine, marks: Marks
) -> None:
    """One is ended at its mark; it goes on to the end of its batch, and commits nothing."""
    gate = threading.Barrier(2)
    failed: list[BaseException] = []
    handled: list[set[str]] = []

    def work(batch: list[str]) -> None:
        firsts: set[str] = set()
        with engine.connect() as connection:
            for place, message_id in enumerate(batch):
                try:
                    if handle(marks, connection, message_id):
                        firsts.add(message_id)
                except sa.exc.SQLAlchemyError as error:
                    failed.append(error)
                if place == 0:
                    gate.wait(60)
            try:
                connection.commit()
            except sa.exc.SQLAlchemyError:
                return
        handled.append(firsts)

    batches = ["m-1", "m-2", "m-3"], ["m-2", "m-1", "m-4"]
    run_together(*[partial(work, batch) for batch in batches])
    assert number_of(failed[0]) == DEADLOCK
    assert len(handled) == 1
    assert set(list_marks(engine, marks)) == handled[0]


def test_fault_55_who_waits_too_long_has_handled_nothing(engine: sa.Engine, marks: Marks) -> None:
    with engine.connect() as first, engine.connect() as second:
        assert handle(marks, first, "m-1")
        second.execute(sa.text("SET innodb_lock_wait_timeout = 1"))
        assert handle(marks, second, "m-2")
        with pytest.raises(sa.exc.OperationalError) as raised:
            handle(marks, second, "m-1")
        assert number_of(raised.value) == LOCK_TIMEOUT
        first.commit()
        # Whether the server undid what came before depends on its settings.
        with pytest.raises(sa.exc.InvalidRequestError):
            second.commit()
    assert list_marks(engine, marks) == ["m-1"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_statement_that_commits_by_itself_is_told(
    engine: sa.Engine, marks: Marks, fails: bool
) -> None:
    with engine.connect() as connection, pytest.raises(UsageError, match="was ended within"):
        with marks.handle_once(connection, "m-1") as attempt:
            assert attempt.is_first
            connection.execute(sa.text("CREATE TABLE other (id INT)"))
            if fails:
                raise ValueError
    assert list_marks(engine, marks) == ["m-1"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("snapshot", [0, 1])
def test_fault_55_what_was_handled_after_the_transaction_began_is_known(
    engine: sa.Engine, marks: Marks, level: Any, snapshot: int
) -> None:
    """A snapshot that does not show the mark: it is found all the same, or the database refuses."""
    with engine.connect() as late, engine.connect() as other:
        late.execute(sa.text(f"SET SESSION innodb_snapshot_isolation = {snapshot}"))
        late.commit()
        late = late.execution_options(isolation_level=level)
        assert late.execute(sa.text("SELECT count(*) FROM work")).scalar_one() == 2
        assert handle(marks, other, "m-1")
        other.commit()
        if snapshot and level != "READ COMMITTED":
            with pytest.raises(sa.exc.OperationalError) as raised:
                handle(marks, late, "m-1")
            assert number_of(raised.value) == CHANGED_SINCE
            with pytest.raises(sa.exc.InvalidRequestError):
                late.commit()
        else:
            assert not handle(marks, late, "m-1")
    assert list_marks(engine, marks) == ["m-1"]


def test_ids_beside_one_that_was_handled_wait_for_nobody(engine: sa.Engine, marks: Marks) -> None:
    """A repeat that is skipped locks its own row, and no gap beside it."""
    with engine.begin() as connection:
        for message_id in ("m-1", "m-5", "m-9"):
            assert handle(marks, connection, message_id)
    with engine.connect() as first, engine.connect() as second:
        second.execute(sa.text("SET innodb_lock_wait_timeout = 1"))
        assert not handle(marks, first, "m-5")
        assert handle(marks, first, "m-6")
        for message_id in ("m-4", "m-7", "m-99"):
            assert handle(marks, second, message_id)
        second.commit()


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_unicode_ci"])
def test_a_table_that_folds_ids_is_told(engine: sa.Engine, collation: str) -> None:
    """Made by hand: what is taken for another would never be handled."""
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "CREATE TABLE folding (message_id VARCHAR(255) CHARACTER SET utf8mb4 "
                f"COLLATE {collation} PRIMARY KEY, handled_at DATETIME NOT NULL)"
            )
        )
    marks = Marks("folding")
    with engine.connect() as connection:
        assert handle(marks, connection, "Order-1")
        assert not handle(marks, connection, "Order-1")
        with pytest.raises(UsageError, match=r"takes it for 'Order-1'.*another message"):
            handle(marks, connection, "order-1")


@pytest.mark.parametrize("charset", ["utf8mb3", "latin1"])
@pytest.mark.parametrize("mode", ["STRICT_ALL_TABLES", ""])
def test_ids_that_the_connection_cannot_carry_never_become_one(
    mariadb_url: str, marks: Marks, mode: str, charset: str
) -> None:
    """Without strict mode the server writes `?` for each of them."""
    made = sa.create_engine(
        f"{mariadb_url}?charset={charset}",
        connect_args={"init_command": f"SET sql_mode = '{mode}'"},
    )
    told: list[str] = []
    for message_id in ("\U0001f600", "\U0001f601", "\U0001f600"):
        with made.connect() as connection:
            try:
                told.append(str(handle(marks, connection, message_id)))
                connection.commit()
            except (sa.exc.DBAPIError, UsageError, UnicodeEncodeError) as error:
                told.append(type(error).__name__)
    made.dispose()
    assert "False" not in told
    assert told.count("True") <= 1


@pytest.mark.parametrize("other_engine", ["Aria", "MyISAM"])
def test_the_table_has_transactions_whatever_the_server_prefers(
    mariadb_url: str, other_engine: str
) -> None:
    preferring = sa.create_engine(
        mariadb_url, connect_args={"init_command": f"SET default_storage_engine = {other_engine}"}
    )
    marks = Marks("handled")
    marks.create_tables(preferring)
    with preferring.connect() as connection:
        assert handle(marks, connection, "m-1")
        connection.rollback()
    assert list_marks(preferring, marks) == []
    preferring.dispose()


def test_old_marks_are_judged_in_utc_whatever_the_time_zone(mariadb_url: str, marks: Marks) -> None:
    for zone, gone in (("+05:30", "m-east"), ("-08:00", "m-west")):
        there = sa.create_engine(
            mariadb_url, connect_args={"init_command": f"SET time_zone = '{zone}'"}
        )
        with there.begin() as connection:
            assert handle(marks, connection, "young")
            old = datetime.now(UTC) - timedelta(hours=2)
            connection.execute(sa.insert(marks.table), {"message_id": gone, "handled_at": old})
        assert marks.purge(there, timedelta(hours=1)) == 1
        assert list_marks(there, marks) == ["young"]
        with there.begin() as connection:
            connection.execute(sa.delete(marks.table))
        there.dispose()


@pytest.mark.parametrize("by", ["driver", "statement"])
def test_autocommit_that_only_the_driver_knows_of_is_refused(
    mariadb_url: str, marks: Marks, engine: sa.Engine, by: str
) -> None:
    made = sa.create_engine(mariadb_url, connect_args={"autocommit": by == "driver"})
    with made.connect() as connection, pytest.raises(UsageError, match="commits by itself"):
        if by == "statement":
            connection.execute(sa.text("SET autocommit = 1"))
        with marks.handle_once(connection, "m-1"):
            pytest.fail("the block was entered")
    made.dispose()
    assert list_marks(engine, marks) == []


LONG, SHORT = timedelta(minutes=5), timedelta(milliseconds=50)
NO_WAIT = timedelta(0)


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
    assert counted(marks) == {"first": 1, "failed": 1}


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
    assert counted(marks) == {"first": 1, "in_progress": 1}
    firsts: list[int] = []
    gate = threading.Barrier(4)
    patient = make_marks(client, unique, wait=timedelta(minutes=1))

    def work() -> None:
        gate.wait(60)
        for number in range(25):
            firsts.extend([number] if take(patient, f"n-{number}")[0] else [])

    run_together(*[work] * 4)
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
    assert counted(late) == {"lease_lost": 1, "failed": 1}


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
    assert counted(marks) == {"first": 1, "repeat": 2, "conflict": 3}


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
        with opened.handle_once("m-0") as noted:
            assert (noted.is_first, noted.is_marked) == (True, True)
            with pytest.raises(MarksAway, match="Redis cannot be used") as raised:
                with closed.handle_once("m-3") as attempt:
                    assert attempt.is_first
                    server.kill()
            assert raised.value.retryable
        assert not noted.is_marked, "its end could not be noted"
        with opened.handle_once("m-1") as attempt:
            assert (attempt.is_first, attempt.is_marked) == (True, False)
        assert take(opened, "m-4") == (True, False)
        with pytest.raises(MarksAway), closed.handle_once("m-2"):
            pytest.fail("the block was entered")
        assert counted(opened) == {"first": 1, "unmarked": opened.unmarked}
        assert (opened.unmarked, counted(closed)) == (3, {"first": 1, "away": 2})
        server.start()
        for marks in (opened, closed):
            assert [take(marks, f"m-{marks.unmarked}")[0] for _ in range(2)] == [True, False]
    told = [record.getMessage() for record in list_own(caplog)]
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
    assert counted(marks) == {"failed": 1, "refused": 1}
    unmarked = make_marks(client, unique, without_id="unmarked")
    assert take(unmarked, Message(topic="orders", partition=0, value=b"v")) == (True, False)
    assert counted(unmarked) == {"without_id": 1}
