"""Outboxes that are set wrong, for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from backlogctl.kafka.admin import create_topic
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.replay.doctor.deliveries import examine_deliveries
from backlogctl.replay.doctor.outboxes import judge_table
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.outbox.database import Shape
from tests.delivery.kit import Shop
from tests.kafka_tools import properties_of
from tests.replay.calling import call_main
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


def test_nobody_sends(
    look: Callable[..., dict[str, CheckFinding]], pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Shop(pg_url, "unused:1") as shop:
        shop.add("orders", "a", "b")
        with shop.engine.begin() as connection:
            connection.execute(text("UPDATE backlog_outbox SET created_at = created_at - 660000"))
    found = look()["late"]
    assert found.level is CheckLevel.STOPS
    assert "2 messages wait, the oldest for 11 min, and Kafka answers" in found.found
    assert found.commands[1] == "backlogctl outbox run --outbox shop"
    assert look(late="12m") == {}
    monkeypatch.setattr("backlogctl.replay.doctor.deliveries._SECONDS", 3.0)
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
