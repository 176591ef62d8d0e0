"""What is counted of messages, how Prometheus sees it, and what each module needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prometheus_client import CollectorRegistry, start_http_server

from backlogctl.config import Config
from backlogctl.sandbox.secured import HOST
from backlogctl_delivery.idempotent.attempts import (
    OUTCOMES,
    PayloadConflict,
)
from backlogctl_delivery.idempotent.metrics import CATALOGUE, OnceCollector
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.lookback.admin import park_message
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.tables import LookBackDatabase, create_tables
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.metrics import OutboxCollector
from backlogctl_delivery.outbox.sender import OutboxSender
from tests.delivery.kit import Shop, Teller, counted, make_marks
from tests.kit.kafka import wait_until
from tests.kit.prometheus import EmbeddedPrometheus, scrape_registry
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
        desk = OutboxAdmin(shop.database)
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


def test_what_the_work_raises_about_another_message_is_a_failure(
    engine: sa.Engine, marks: Marks
) -> None:
    with (
        engine.begin() as connection,
        pytest.raises(PayloadConflict),
        marks.handle_once(connection, "m-1") as attempt,
    ):
        raise PayloadConflict("another's", subject=f"{attempt.is_first}")
    assert counted(marks) == {"failed": 1}


def test_an_application_exports_them_from_0(client: redis.Redis, unique: str) -> None:
    mailer = make_marks(client, unique)
    with mailer.handle_once("m-1") as attempt:
        assert attempt.is_first
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


_IDEMPOTENT = "kafka confluent_kafka redis prometheus_client"


@pytest.mark.parametrize(
    ("modules", "unused"),
    [
        ("outbox outbox.metrics", ""),
        ("idempotent.sql", _IDEMPOTENT),
        ("idempotent.redis", _IDEMPOTENT.replace("redis ", "")),
        ("idempotent.metrics", _IDEMPOTENT.replace(" prometheus_client", "")),
        ("sequenced.producer sequenced.checker", "kafka confluent_kafka"),
        ("lookback.producer", "kafka confluent_kafka grpc httpx"),
        ("lookback.service lookback.http_checker", "grpc"),
        ("lookback.grpc_service", "httpx"),
    ],
)
def test_importing_loads_nothing_that_is_not_used(modules: str, unused: str) -> None:
    names = ", ".join(f"{OURS.replace('-', '_')}.{name}" for name in modules.split())
    heavy = {"pyspark", "pandas", "numpy", "matplotlib", "pyarrow", *unused.split()}
    code = f"import sys, {names}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
