"""Look-back that is set wrong, for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from backlogctl.kafka.admin import create_topic
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.replay.doctor.deliveries import examine_deliveries
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.lookback.admin import list_messages, park_message
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.lookback.tables import (
    LookBackDatabase,
    create_tables,
    list_partitions,
    name_partition,
)
from tests.delivery.kit import Teller, make_settings
from tests.kafka_tools import properties_of
from tests.replay.doctor.world import list_levels, make_workspace

DAY = 86_400_000
SERVICE = {
    "payments": {"http": "http://localhost:8080/look-back", "networks": ["127.0.0.0/8", "::1"]}
}
# Of one broker, which is what the tests have.
ALWAYS = {"replication-factor": CheckLevel.LOSES}
Look = Callable[..., dict[str, CheckFinding]]


@pytest.fixture
def database(pg_url: str) -> Iterator[LookBackDatabase]:
    made = LookBackDatabase(pg_url)
    create_tables(made)
    yield made
    made.close()


@pytest.fixture
def look(kafka: EmbeddedKafka, pg_url: str, unique: str, tmp_path: Path) -> Look:
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


def test_nothing_is_found_where_all_is_well(look: Look, database: LookBackDatabase) -> None:
    assert list_levels(look()) == ALWAYS


def test_before_the_service_has_ever_run(look: Look) -> None:
    found = look(partitions=0)
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
    look: Look,
    database: LookBackDatabase,
    config: dict[str, str],
    settings: dict[str, str],
    expected: dict[str, str],
) -> None:
    found = look(config, **settings)
    told = list_more(found)
    told.pop("under-replicated", None)
    assert told == expected
    assert not any("backlogctl hold" in text for one in found.values() for text in one.commands)


def test_one_partition_is_read_by_one_instance(look: Look, database: LookBackDatabase) -> None:
    assert list_more(look(partitions=1)) == {"look-back-topic": CheckLevel.WARNS}


def test_partitions_ahead(look: Look, database: LookBackDatabase) -> None:
    def drop(ahead: int) -> None:
        with database.write() as connection:
            day = database.now(connection).date() + timedelta(days=ahead)
            assert day in list_partitions(connection)
            connection.execute(text(f"DROP TABLE {name_partition(day)}"))

    drop(3)
    assert list_more(look()) == {}, "just after midnight"
    drop(2)
    assert list_more(look()) == {"look-back-tables": CheckLevel.WARNS}
    drop(0)
    found = look()
    assert list_more(found) == {"look-back-tables": CheckLevel.STOPS}
    assert "nothing new can be stored" in found["look-back-tables"].found


def test_what_is_parked_and_what_is_late(
    look: Look, database: LookBackDatabase, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teller = Teller(database, make_settings())
    teller.prepare("1")
    teller.prepare("2")
    assert list_more(look()) == {}
    assert list_more(look(late="1ms")) == {"late": CheckLevel.STOPS}
    first = list_messages(database, [State.PREPARED], 1)[0]
    park_message(database, first["id"], "ada")
    found = look(late="1ms")
    assert list_more(found) == {"parked": CheckLevel.STOPS, "late": CheckLevel.STOPS}
    assert found["parked"].commands[0] == "backlogctl lookback list --state parked"
    assert found["late"].found.startswith("1 message prepared, the oldest for")
    monkeypatch.setattr("backlogctl.replay.doctor.deliveries._SECONDS", 3.0)
    away = look(bootstrap="127.0.0.1:1", partitions=0, late="1ms")
    assert list_levels(away) == {"parked": CheckLevel.STOPS, "unread": CheckLevel.UNKNOWN}


@pytest.mark.parametrize(
    ("service", "problem"),
    [
        ({"http": "http://localhost:8080/"}, "which is not public and not listed"),
        ({"grpc": "nobody.invalid:9000"}, "its name does not resolve here"),
    ],
)
def test_fault_58_a_service_that_may_not_be_asked(
    look: Look, database: LookBackDatabase, service: dict[str, str], problem: str
) -> None:
    found = look(services={"orders": service, **SERVICE})
    assert list_more(found) == {"look-back-service": CheckLevel.STOPS}
    assert found["look-back-service"].subject == "service orders"
    assert problem in found["look-back-service"].found


def test_nobody_to_ask_and_a_database_for_trying_out(look: Look, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/look-back.db"
    made = LookBackDatabase(url)
    create_tables(made)
    made.close()
    found = look(database=url, services={})
    assert list_more(found) == {
        "look-back-service": CheckLevel.WARNS,
        "look-back-database": CheckLevel.WARNS,
    }


def test_a_database_that_is_away_is_unknown(look: Look) -> None:
    found = look(database="postgresql+psycopg://app@127.0.0.1:1/look_back")
    assert list_more(found) == {"unread": CheckLevel.UNKNOWN}
