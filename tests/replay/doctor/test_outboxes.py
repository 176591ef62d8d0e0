"""Outboxes and look-back that are set wrong, for real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from backlogctl.kafka.admin import create_topic
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.replay.doctor.deliveries import examine_deliveries
from backlogctl.replay.doctor.outboxes import judge_table
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.lookback.admin import list_messages, park_message
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.tables import (
    LookBackDatabase,
    create_tables,
    list_partitions,
    name_partition,
)
from backlogctl_delivery.outbox.database import Shape
from tests.delivery.kit import Shop, Teller, make_settings
from tests.kit.kafka import properties_of
from tests.kit.shop import call_main
from tests.replay.doctor.world import SOURCE, list_levels, make_workspace

DAY = 86_400_000
FED = {**SOURCE, "table": "backlog_outbox"}


@pytest.fixture
def look(
    kafka: EmbeddedKafka, pg_url: str, tmp_path: Path
) -> Callable[..., dict[str, CheckFinding]]:
    """Examines the outbox `shop` with these settings."""

    def examine(
        url: str = pg_url,
        bootstrap: str = kafka.bootstrap,
        stream: dict[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, CheckFinding]:
        workspace = make_workspace(
            tmp_path,
            properties_of(bootstrap),
            sources={"shop": {"url": url}},
            outboxes={"shop": {"cluster": "main", **settings}},
            streams={"orders": stream} if stream else {},
        )
        (one,) = examine_deliveries(workspace)
        assert (one.about, one.name) == ("outbox", "shop")
        found: dict[str, CheckFinding] = {}
        for finding in one.findings:
            found.setdefault(finding.check, finding)
        return found

    return examine


@pytest.mark.parametrize("database", ["pg_url", "mariadb_url"])
def test_nothing_is_found_where_all_is_well(
    request: pytest.FixtureRequest, look: Callable[..., dict[str, CheckFinding]], database: str
) -> None:
    url = request.getfixturevalue(database)
    with Shop(url, "unused:1") as shop:
        shop.add("orders", "a")
    assert look(url) == {}


def test_a_table_that_is_not_there_is_made_by_a_command(
    look: Callable[..., dict[str, CheckFinding]],
) -> None:
    (found,) = look().values()
    assert (found.check, found.level) == ("outbox-table", CheckLevel.STOPS)
    assert found.commands == ("backlogctl outbox create --outbox shop",)


@pytest.mark.parametrize("database", ["pg_url", "mariadb_url", "sqlite"])
def test_a_table_of_another_version_is_told_by_what_it_lacks(
    request: pytest.FixtureRequest,
    look: Callable[..., dict[str, CheckFinding]],
    tmp_path: Path,
    database: str,
) -> None:
    is_sqlite = database == "sqlite"
    url = f"sqlite:///{tmp_path}/shop.db" if is_sqlite else request.getfixturevalue(database)
    Shop(url, "unused:1").close()
    on = " ON backlog_outbox" if database == "mariadb_url" else ""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"DROP INDEX backlog_outbox_sent_at{on}"))
        connection.execute(text(f"DROP INDEX backlog_outbox_ordering_key{on}"))
        # By another name, and with a column more, it does as well.
        connection.execute(text("CREATE INDEX theirs ON backlog_outbox (sent_at, id)"))
    found = look(url)["outbox-table"]
    assert found.level is CheckLevel.WARNS
    (statement,) = found.commands
    assert statement.startswith(
        "CREATE INDEX backlog_outbox_ordering_key ON backlog_outbox (ordering_key, id)"
    )
    with engine.begin() as connection:
        connection.execute(text(statement))
    assert "outbox-table" not in look(url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE backlog_outbox DROP COLUMN interval_ms"))
    engine.dispose()
    found = look(url)["outbox-table"]
    assert found.level is CheckLevel.STOPS
    assert "it has no column interval_ms" in found.found


def test_nobody_sends(look: Callable[..., dict[str, CheckFinding]], pg_url: str) -> None:
    with Shop(pg_url, "unused:1") as shop:
        shop.add("orders", "a", "b")
        with shop.engine.begin() as connection:
            connection.execute(text("UPDATE backlog_outbox SET created_at = created_at - 660000"))
    found = look()["late"]
    assert found.level is CheckLevel.STOPS
    assert "2 messages wait, the oldest for 11 min, and Kafka answers" in found.found
    assert found.commands[1] == "backlogctl outbox run --outbox shop"
    assert look(late="12m") == {}
    away = look(bootstrap="127.0.0.1:1")
    assert list_levels(away) == {"unread": CheckLevel.UNKNOWN}, "Kafka is why nothing is sent"


def test_a_parked_message_is_told_with_those_behind_it(
    look: Callable[..., dict[str, CheckFinding]], pg_url: str
) -> None:
    with Shop(pg_url, "unused:1") as shop:
        shop.add("orders", "a", "a")
        with shop.engine.begin() as connection:
            connection.execute(text("UPDATE backlog_outbox SET created_at = created_at - 660000"))
            connection.execute(
                text(
                    "UPDATE backlog_outbox SET state = 'parked', due_at = 4611686018427387904 "
                    "WHERE id = (SELECT min(id) FROM backlog_outbox)"
                )
            )
    found = look()
    assert list_levels(found) == {"parked": CheckLevel.STOPS}
    assert found["parked"].found == ("1 message is parked; 1 message waits, the oldest for 11 min")


def test_what_a_rebuild_needs_is_kept_and_placed_alike(
    look: Callable[..., dict[str, CheckFinding]],
    properties: dict[str, str],
    pg_url: str,
    unique: str,
) -> None:
    Shop(pg_url, "unused:1").close()
    name = f"topic-{unique}"
    create_topic(
        *(properties, name),
        partitions=1,
        replication=1,
        config={"retention.ms": str(7 * DAY)},
    )
    stream = {"cluster": "main", "topic": name, "group": "service", "source": FED}
    found = look(stream=stream, keep="7d")
    assert list_levels(found) == {"outbox-keep": CheckLevel.LOSES}
    assert "deleted after 7 d, and topic" in found["outbox-keep"].found
    assert look(stream=stream, keep="8d") == {}
    assert look(stream=stream) == {}, "without `keep` nothing is deleted"
    assert look(stream={**stream, "source": None}, keep="7d") == {}
    other = look(stream={**stream, "partitioner": "crc32"})
    assert list_levels(other) == {"outbox-stream": CheckLevel.STOPS}
    assert "partitioner crc32, and the outbox murmur2" in other["outbox-stream"].found


def test_a_database_without_skip_locked(
    look: Callable[..., dict[str, CheckFinding]], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    assert list_levels(look(url)) == {"unread": CheckLevel.UNKNOWN}
    assert not (tmp_path / "shop.db").exists()
    Shop(url, "unused:1").close()
    found = look(url)
    assert list_levels(found) == {"outbox-locks": CheckLevel.WARNS}
    assert "it is in SQLite 3" in found["outbox-locks"].found
    # Debian's is newer, so the words of an older one.
    (old,) = judge_table("shop", Shape(True, (), (), "MariaDB 10.5", False))
    assert old.found == "it is in MariaDB 10.5, which does not know SKIP LOCKED"


def test_a_database_that_is_away_or_hangs_is_unknown(
    look: Callable[..., dict[str, CheckFinding]], pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = look("postgresql+psycopg://app@127.0.0.1:1/shop")
    assert list_levels(away) == {"unread": CheckLevel.UNKNOWN}
    Shop(pg_url, "unused:1").close()
    monkeypatch.setattr("backlogctl.replay.doctor.outboxes._SECONDS", 2.0)
    engine = create_engine(pg_url)
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE backlog_outbox IN ACCESS EXCLUSIVE MODE"))
        hung = look()
    engine.dispose()
    assert list_levels(hung) == {"unread": CheckLevel.UNKNOWN}
    assert "has not answered for 2 s" in hung["unread"].found


def test_doctor_without_a_stream_looks_at_them(
    properties: dict[str, str], pg_url: str, tmp_path: Path
) -> None:
    make_workspace(
        tmp_path,
        properties,
        sources={"shop": {"url": pg_url}},
        outboxes={"shop": {"cluster": "main"}},
        streams={},
    )
    code, out, _ = call_main(("doctor", "--json"), tmp_path, {})
    found = {one["about"]: one for one in json.loads(out)["examinations"]}
    assert code == 1
    assert found["outbox"]["name"] == "shop"
    assert found["outbox"]["findings"][0]["check"] == "outbox-table"
    code, out, _ = call_main(("doctor",), tmp_path, {})
    assert "outbox shop: 1 finding" in out


SERVICE = {
    "payments": {"http": "http://localhost:8080/look-back", "networks": ["127.0.0.0/8", "::1"]}
}
# Of one broker, which is what the tests have.
ALWAYS = {"replication-factor": CheckLevel.LOSES}
Look = Callable[..., dict[str, CheckFinding]]


@pytest.fixture
def tables(pg_url: str) -> Iterator[LookBackDatabase]:
    made = LookBackDatabase(pg_url)
    create_tables(made)
    yield made
    made.close()


@pytest.fixture
def look_at_service(kafka: EmbeddedKafka, pg_url: str, unique: str, tmp_path: Path) -> Look:
    """Examines look-back with a topic and settings as given; by check, of several the worst."""
    number = 0

    def examine(
        config: dict[str, str] | None = None,
        partitions: int = 3,
        bootstrap: str = kafka.bootstrap,
        **settings: Any,
    ) -> dict[str, CheckFinding]:
        nonlocal number
        number += 1
        name = f"look-back-{unique}-{number}"
        if partitions:
            create_topic(
                *(properties_of(kafka.bootstrap), name),
                partitions=partitions,
                replication=1,
                config={"retention.ms": str(7 * DAY), **(config or {})},
            )
        workspace = make_workspace(
            tmp_path,
            properties_of(bootstrap),
            streams={},
            look_back={
                "database": pg_url,
                "cluster": "main",
                "topic": name,
                "services": SERVICE,
                **settings,
            },
        )
        (one,) = examine_deliveries(workspace)
        assert (one.about, one.name) == ("look-back", "look-back")
        found: dict[str, CheckFinding] = {}
        for finding in one.findings:
            found.setdefault(finding.check, finding)
        return found

    return examine


def list_more(found: dict[str, CheckFinding]) -> dict[str, CheckLevel]:
    """Levels, without what a single broker always gives."""
    return {check: level for check, level in list_levels(found).items() if check not in ALWAYS}


def test_nothing_is_found_where_look_back_is_well(
    look_at_service: Look, tables: LookBackDatabase
) -> None:
    assert list_levels(look_at_service()) == ALWAYS


def test_before_the_service_has_ever_run(look_at_service: Look) -> None:
    found = look_at_service(partitions=0)
    assert list_levels(found) == {
        "look-back-topic": CheckLevel.STOPS,
        "look-back-tables": CheckLevel.STOPS,
    }
    (create,) = found["look-back-topic"].commands
    assert "--create --topic look-back-" in create
    assert found["look-back-tables"].commands == ("backlogctl lookback run",)


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        ({"cleanup.policy": "compact,delete"}, {}, {"look-back-topic": "loses"}),
        ({"retention.ms": str(40 * DAY)}, {}, {"look-back-keep": "warns"}),
        ({"retention.ms": "-1"}, {}, {"look-back-keep": "warns"}),
        ({"retention.ms": str(40 * DAY)}, {"keep": "41d"}, {}),
        ({"retention.ms": str(DAY // 2)}, {}, {"retention": "loses"}),
        ({"min.insync.replicas": "2"}, {}, {"min-insync-replicas": "stops"}),
        ({"unclean.leader.election.enable": "true"}, {}, {"unclean-leader-election": "loses"}),
    ],
)
def test_settings_of_its_topic(
    look_at_service: Look,
    tables: LookBackDatabase,
    config: dict[str, str],
    settings: dict[str, str],
    expected: dict[str, str],
) -> None:
    found = look_at_service(config, **settings)
    told = list_more(found)
    told.pop("under-replicated", None)
    assert told == expected
    assert not any("backlogctl hold" in text for one in found.values() for text in one.commands)


def test_one_partition_is_read_by_one_instance(
    look_at_service: Look, tables: LookBackDatabase
) -> None:
    assert list_more(look_at_service(partitions=1)) == {"look-back-topic": CheckLevel.WARNS}


def test_partitions_ahead(look_at_service: Look, tables: LookBackDatabase) -> None:
    def drop(ahead: int) -> None:
        with tables.write() as connection:
            day = tables.now(connection).date() + timedelta(days=ahead)
            assert day in list_partitions(connection)
            connection.execute(text(f"DROP TABLE {name_partition(day)}"))

    drop(3)
    assert list_more(look_at_service()) == {}, "just after midnight"
    drop(2)
    assert list_more(look_at_service()) == {"look-back-tables": CheckLevel.WARNS}
    drop(0)
    found = look_at_service()
    assert list_more(found) == {"look-back-tables": CheckLevel.STOPS}
    assert "nothing new can be stored" in found["look-back-tables"].found


def test_what_is_parked_and_what_is_late(
    look_at_service: Look, tables: LookBackDatabase, pg_url: str
) -> None:
    teller = Teller(tables, make_settings())
    teller.prepare("1")
    teller.prepare("2")
    assert list_more(look_at_service()) == {}
    assert list_more(look_at_service(late="1ms")) == {"late": CheckLevel.STOPS}
    first = list_messages(tables, [State.PREPARED], 1)[0]
    park_message(tables, first["id"], "ada")
    found = look_at_service(late="1ms")
    assert list_more(found) == {"parked": CheckLevel.STOPS, "late": CheckLevel.STOPS}
    assert found["parked"].commands[0] == "backlogctl lookback list --state parked"
    assert found["late"].found.startswith("1 message prepared, the oldest for")
    away = look_at_service(bootstrap="127.0.0.1:1", partitions=0, late="1ms")
    assert list_levels(away) == {"parked": CheckLevel.STOPS, "unread": CheckLevel.UNKNOWN}


@pytest.mark.parametrize(
    ("service", "problem"),
    [
        ({"http": "http://localhost:8080/"}, "which is not public and not listed"),
        ({"grpc": "nobody.invalid:9000"}, "its name does not resolve here"),
    ],
)
def test_fault_58_a_service_that_may_not_be_asked(
    look_at_service: Look, tables: LookBackDatabase, service: dict[str, str], problem: str
) -> None:
    found = look_at_service(services={"orders": service, **SERVICE})
    assert list_more(found) == {"look-back-service": CheckLevel.STOPS}
    assert found["look-back-service"].subject == "service orders"
    assert problem in found["look-back-service"].found


def test_nobody_to_ask_and_a_database_for_trying_out(look_at_service: Look, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/look-back.db"
    made = LookBackDatabase(url)
    create_tables(made)
    made.close()
    found = look_at_service(database=url, services={})
    assert list_more(found) == {
        "look-back-service": CheckLevel.WARNS,
        "look-back-database": CheckLevel.WARNS,
    }


def test_a_database_that_is_away_is_unknown(look_at_service: Look) -> None:
    found = look_at_service(database="postgresql+psycopg://app@127.0.0.1:1/look_back")
    assert list_more(found) == {"unread": CheckLevel.UNKNOWN}
