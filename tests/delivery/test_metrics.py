"""What is counted of messages, how Prometheus sees it, and what each module needs."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from confluent_kafka import Message
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prometheus_client import CollectorRegistry, start_http_server
from sqlalchemy.ext.asyncio import create_async_engine

from backlogctl.config import Config
from backlogctl.errors import UsageError
from backlogctl.sandbox.secured import HOST
from backlogctl_delivery.idempotent.attempts import (
    OUTCOMES,
    Counts,
    InProgress,
    LeaseLost,
    MarksAway,
    NoMessageId,
    PayloadConflict,
)
from backlogctl_delivery.idempotent.metrics import CATALOGUE, OnceCollector
from backlogctl_delivery.idempotent.redis import RedisMarks
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.lookback.admin import park_message
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.tables import LookBackDatabase, create_tables
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase
from backlogctl_delivery.outbox.metrics import OutboxCollector
from backlogctl_delivery.outbox.sender import OutboxSender
from tests.delivery.kit import Shop, Teller, WorkFailed, make_marks
from tests.kit.kafka import wait_until
from tests.kit.prometheus import EmbeddedPrometheus, scrape_registry
from tests.kit.services import EmbeddedRedis
from tests.kit.shop import call_main
from tests.monitoring.test_rules import (
    DASHBOARDS,
    FILES,
    fill_variables,
    list_targets,
    split_as_bash,
)

CONFIG = """\
clusters: {main: {bootstrap.servers: "localhost:9092"}}
sources: {shop: {url: sqlite:///shop.db}}
outboxes: {shop: {cluster: main}}
look_back: {database: sqlite:///look-back.db, cluster: main}
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a sender, an instance of look-back and a consumer; each of them has a parked message, or
    work that was done without a mark."""
    (tmp_path / "backlog.yaml").write_text(CONFIG)
    registry = CollectorRegistry()
    with Shop(f"sqlite:///{tmp_path}/shop.db", "unused:1") as shop:
        shop.add("orders", "a")
        desk = OutboxAdmin(OutboxDatabase(shop.engine))
        desk.park([1])
        sender = OutboxSender(shop.engine, {"bootstrap.servers": "unused:1"})
        registry.register(OutboxCollector(desk, lambda: sender, "shop"))

        settings = Config.from_text(CONFIG, tmp_path).look_back
        assert settings is not None
        database = LookBackDatabase(settings.reveal_url())
        create_tables(database)
        teller = Teller(database, settings.to_settings())
        teller.prepare("1")
        park_message(database, teller.find("1")["id"], "me")
        metrics = Metrics(database, ["payments"])
        metrics.incidents.labels("unreadable").inc()
        metrics.forwards.delivered += 1
        registry.register(metrics.registry)

        marks = Marks("payments_handled")
        marks.create_tables(shop.engine)
        with shop.engine.begin() as connection, marks.handle_once(connection, "m-1") as attempt:
            assert attempt.is_first
        marks.counts.add("conflict")
        registry.register(OnceCollector(marks))
        server, thread = start_http_server(0, HOST, registry)
        yield f"{HOST}:{server.server_port}"
        server.shutdown()
        server.server_close()
        thread.join()
        database.close()


@pytest.mark.prometheus
def test_alerts_say_what_to_type_and_panels_show_what_is_wrong(
    address: str, tmp_path: Path
) -> None:
    with EmbeddedPrometheus(tmp_path, address, FILES) as prometheus:
        found: dict[str, Any] = {}
        commands = {
            "BacklogOutboxParked": "backlogctl outbox list --outbox shop --state parked",
            "BacklogLookBackParked": "backlogctl lookback list --state parked",
            "BacklogLookBackConflict": "backlogctl lookback list --incidents",
            "BacklogOnceBroken": "backlogctl status",
        }

        def are_there() -> bool:
            found.update((name, prometheus.list_alerts(name)) for name in commands)
            return all(found.values())

        wait_until(are_there, what="the alerts are pending or fire")
        for name, command in commands.items():
            (alert,) = found[name]
            assert alert["annotations"]["next_command"] == command
        for name in ("BacklogOutboxParked", "BacklogLookBackParked"):
            _, *words = split_as_bash(commands[name])
            code, out, err = call_main((*words, "--json"), tmp_path, {})
            assert code == 0, err
            assert len(json.loads(out)["messages"]) == 1
        for name in ("BacklogOutboxGone", "BacklogOutboxUnseen", "BacklogLookBackGone"):
            assert prometheus.list_alerts(name) == []
        assert prometheus.list_rule_errors() == []

        (board,) = (board for board in DASHBOARDS if board["uid"] == "backlog-delivery")
        queries = {
            (panel["title"], one["refId"]): re.sub(r"\$\w+", ".*", fill_variables(one["expr"]))
            for panel, one in list_targets(board)
        }

        def list_empty() -> set[str]:
            return {title for (title, _), expr in queries.items() if not prometheus.query(expr)}

        quiet = {
            # No row waits, and nothing is asked or fails.
            "Oldest that waits",
            "Outboxes, the worst first",
            "Outboxes: age of the oldest row that waits",
            "Look-back: oldest",
            "Look-back: age of the oldest message",
            "Look-back: questions each minute",
            "Look-back: records that did not fit, in an hour",
            "Look-back: failures of its parts each minute",
            "Idempotent consumers: what else came of messages, each minute",
        }
        wait_until(lambda: list_empty() == quiet, what="the panels show what is there")
        assert _read(prometheus, queries["Parked in outboxes", "A"]) == 1
        assert _read(prometheus, queries["Look-back: parked", "A"]) == 1
        assert _read(prometheus, queries["Databases that nobody reads", "A"]) == 0


def _read(prometheus: EmbeddedPrometheus, expr: str) -> float:
    (row,) = prometheus.query(expr)
    return float(row["value"][1])


# The order of the blocks is what is tested.
# ruff: noqa: PT012, SIM117


LONG, SHORT = timedelta(minutes=5), timedelta(milliseconds=50)
WITHOUT_ID = Message(topic="orders", partition=2, offset=17, value=b"v")


def list_counted(counts: Counts) -> Mapping[str, int]:
    return {outcome: count for outcome, count in counts.read().items() if count}


def take(marks: RedisMarks, message: Any) -> bool:
    with marks.handle_once(message) as attempt:
        return attempt.is_first


def test_in_sql_each_message_counts_once(engine: sa.Engine, marks: Marks) -> None:
    with engine.begin() as connection:
        for _ in range(3):
            with marks.handle_once(connection, "m-1") as attempt:
                assert attempt.is_first or attempt.message_id
        with pytest.raises(WorkFailed), marks.handle_once(connection, "m-2") as attempt:
            raise WorkFailed if attempt.is_first else AssertionError
        with pytest.raises(UsageError), marks.handle_once(connection, "m-3"):
            pass
        with pytest.raises(NoMessageId):
            marks.handle_once(connection, WITHOUT_ID)
    assert list_counted(marks.counts) == {"first": 1, "repeat": 2, "failed": 2, "refused": 1}


def test_what_the_work_raises_about_another_message_is_a_failure(
    engine: sa.Engine, marks: Marks
) -> None:
    with engine.begin() as connection:
        with pytest.raises(PayloadConflict), marks.handle_once(connection, "m-1") as attempt:
            raise PayloadConflict("another's", subject=f"{attempt.is_first}")
    assert list_counted(marks.counts) == {"failed": 1}


def test_an_async_block_counts_once(url: str, engine: sa.Engine, marks: Marks) -> None:
    async def run() -> None:
        made = create_async_engine(
            url.replace("sqlite:", "sqlite+aiosqlite:").replace("pymysql", "aiomysql")
        )
        async with made.begin() as connection:
            for _ in range(2):
                async with marks.handle_once(connection, "m-1") as attempt:
                    assert attempt.is_first or attempt.message_id
            with pytest.raises(WorkFailed):
                async with marks.handle_once(connection, "m-2") as attempt:
                    raise WorkFailed if attempt.is_first else AssertionError
            with pytest.raises(asyncio.CancelledError):
                async with marks.handle_once(connection, "m-3") as attempt:
                    raise asyncio.CancelledError if attempt.is_first else AssertionError
        await made.dispose()

    asyncio.run(run())
    assert list_counted(marks.counts) == {"first": 1, "repeat": 1, "failed": 2}


def test_in_redis_each_message_counts_once(client: redis.Redis, unique: str) -> None:
    marks = make_marks(client, unique)
    assert [take(marks, "m-1") for _ in range(2)] == [True, False]
    with marks.handle_once("m-2", b"one") as attempt:
        assert attempt.is_first
        with pytest.raises(InProgress):
            take(marks, "m-2")
    with pytest.raises(PayloadConflict), marks.handle_once("m-2", b"two"):
        pytest.fail("the block was entered")
    with pytest.raises(WorkFailed), marks.handle_once("m-3") as attempt:
        raise WorkFailed if attempt.is_first else AssertionError
    with pytest.raises(NoMessageId):
        take(marks, WITHOUT_ID)
    assert list_counted(marks.counts) == {
        "first": 2,
        "repeat": 1,
        "in_progress": 1,
        "conflict": 1,
        "failed": 1,
        "refused": 1,
    }
    late = make_marks(client, unique, lease=SHORT, without_id="unmarked")
    with pytest.raises(LeaseLost), late.handle_once("m-4") as attempt:
        assert attempt.is_first
        other = make_marks(client, unique, wait=LONG)
        assert take(other, "m-4")
    assert take(late, WITHOUT_ID)
    assert list_counted(late.counts) == {"lease_lost": 1, "without_id": 1}


def test_fault_56_work_without_a_mark_is_counted_as_that(unique: str) -> None:
    with EmbeddedRedis() as server, server.connect() as client:
        opened = make_marks(client, unique, when_away="open")
        closed = make_marks(client, unique)
        with opened.handle_once("m-1") as attempt:
            assert (attempt.is_first, attempt.is_marked) == (True, True)
            server.kill()
        assert not attempt.is_marked, "its end could not be noted"
        assert take(opened, "m-2")
        with pytest.raises(MarksAway):
            take(closed, "m-3")
    assert list_counted(opened.counts) == {"unmarked": 2}
    assert opened.unmarked == 2
    assert list_counted(closed.counts) == {"away": 1}


def test_an_application_exports_them_from_0(client: redis.Redis, unique: str) -> None:
    mailer = make_marks(client, unique)
    take(mailer, "m-1")
    registry = CollectorRegistry()
    registry.register(OnceCollector(mailer, mailer, Marks("handled", schema="shop")))
    got = scrape_registry(registry)
    (metric,) = CATALOGUE
    assert got.labels_of(metric.exported_name, "marks") == {unique, "shop.handled"}
    assert got.labels_of(metric.exported_name, "outcome") == set(OUTCOMES)
    assert got.value(metric.exported_name, marks=unique, outcome="first") == 2
    assert sum(got.find(metric.exported_name).values()) == 2


PAGE = (Path(__file__).parents[2] / "docs/install.md").read_text()
OURS = "backlogctl-delivery"
MODULES = {
    module: "" if extra == "none" else f"[{extra.strip('`')}]"
    for extra, modules in re.findall(r"^\| (none|`\w+`) \| (`back[^|]+) \|$", PAGE, re.MULTILINE)
    for module in re.findall(r"`([^`]+)`", modules)
}
# What is not named is as if it were not installed.
_IMPORT = """
import importlib, sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
importlib.import_module(sys.argv[1])
"""


def import_with(module: str, names: set[str]) -> str:
    """What it complains of where only these packages are installed."""
    others = {
        top
        for top, owners in metadata.packages_distributions().items()
        if not names & {canonicalize_name(owner) for owner in owners}
    }
    command = [sys.executable, "-c", _IMPORT, module, *sorted(others)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr


def close(names: set[str]) -> set[str]:
    """Those and what comes with them; `name[extra]` with what the extra brings."""
    found: set[str] = set()
    while new := names - found:
        found |= new
        for wanted in map(Requirement, new):
            for one in map(Requirement, metadata.requires(wanted.name) or ()):
                extras = ["", *wanted.extras]
                if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras):
                    name = canonicalize_name(one.name)
                    names = names | {name, *(f"{name}[{extra}]" for extra in one.extras)}
    return {Requirement(name).name for name in found}


def test_it_brings_two_libraries_and_extras_the_rest() -> None:
    assert close({OURS}) == {OURS, "confluent-kafka", "sqlalchemy", "typing-extensions"}
    assert "greenlet" in close({f"{OURS}[asyncio]"})
    assert len(MODULES) >= 10


@pytest.mark.parametrize("module", MODULES)
def test_a_module_needs_what_the_page_says_and_no_more(module: str) -> None:
    assert import_with(module, close({OURS + MODULES[module]})) == ""
    if MODULES[module]:
        assert "No module named" in import_with(module, close({OURS}))
