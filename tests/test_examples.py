"""Every example and page of `delivery`, run as it stands; a canary for kafka-python."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from typing import Any

import kafka
import pytest
import yaml
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from fastapi.testclient import TestClient
from kafka import KafkaAdminClient
from sqlalchemy import MetaData, create_engine, inspect

import backlogctl_delivery.outbox
from backlogctl.clock import Deadline
from backlogctl.config import Consumers, load_config
from backlogctl.fanout.launchers import Fleet, ProcessLauncher, Role
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import free_port
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.lookback.messages import Prepared, read_envelope
from backlogctl_delivery.stamps import EVENT_ID, find_header
from examples.lost_orders import render_configuration
from tests.conftest import MakeTopic
from tests.kit.kafka import properties_of, read_all, wait_until
from tests.kit.services import EmbeddedRedis

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]-*"))
ENV = {"SHOP_KAFKA": "127.0.0.1:9092", "PAYMENTS": "127.0.0.1:8791"}


def read(text: str) -> Any:
    return yaml.safe_load(text)


@pytest.mark.parametrize("directory", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_and_is_explained(directory: Path) -> None:
    config = load_config(directory / "backlog.yaml", ENV)
    assert config.clusters
    assert (directory / "README.md").read_text().startswith(f"# {directory.name[:2]}: ")


def test_there_are_examples() -> None:
    assert [path.name for path in EXAMPLES] == [
        "01-lost-orders",
        "02-drain-a-backlog",
        "03-order-service-with-outbox",
        "04-payment-with-look-back",
        "05-handle-once-consumer",
        "06-small-services",
    ]


def test_the_first_example_is_the_demos_shop() -> None:
    assert read((EXAMPLES[0] / "backlog.yaml").read_text()) == read(render_configuration())


def test_the_second_example_starts_a_program_that_is_there() -> None:
    consumers = load_config(EXAMPLES[1] / "backlog.yaml", ENV).stream("orders").consumers
    assert consumers is not None
    assert consumers.command is not None
    assert consumers.directory == EXAMPLES[1]
    assert (EXAMPLES[1] / consumers.command[1]).is_file()
    for name in ("../order_consumer.py", "make_backlog.py"):
        assert callable(runpy.run_path(str(EXAMPLES[1] / name))["main"])


def test_what_the_first_example_runs_can_be_imported() -> None:
    assert callable(runpy.run_path(str(EXAMPLES[0] / "lose_orders.py"))["main"])


ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ADDRESS = "127.0.0.1:PORT"


def read_commands(readme: Path) -> list[str]:
    """What its reader types. `broker start` prints the address that stands for `PORT`."""
    blocks = _BLOCK.findall(readme.read_text())
    lines = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    assert sum(_ADDRESS in line for line in lines) == 1
    return lines


def run_example(tmp_path: Path, name: str, **changes: str) -> list[str]:
    """Runs them in one shell, in a copy of the folder; returns what they print, line by line."""
    shutil.copytree(
        ROOT / "examples",
        tmp_path / "examples",
        ignore=shutil.ignore_patterns(".backlog-broker", "*.db*", "__pycache__"),
    )
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "delivery").symlink_to(ROOT / "delivery")
    place = tmp_path / "examples" / name
    script = "\n".join(read_commands(place / "README.md"))
    script = script.replace(_ADDRESS, "$(grep -o '127[0-9.:]*' .backlog-broker/broker.json)")
    for before, after in changes.items():
        assert before in script
        script = script.replace(before, after)
    try:
        # Its last command stops the broker, and would hide what failed before.
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout.splitlines()
    finally:
        stop = [sys.executable, "-m", "backlogctl.replay.cli", "broker", "stop", "--dir"]
        subprocess.run(
            [*stop, place / ".backlog-broker"], cwd=ROOT, check=False, capture_output=True
        )


def test_orders_in_the_table_are_messages_in_the_topic_though_the_service_was_killed(
    tmp_path: Path,
) -> None:
    lines = run_example(tmp_path, "03-order-service-with-outbox")
    assert any("Killed" in line for line in lines)
    table, topic, difference = lines[-4:-1]
    number = int(table.split()[0].replace(",", ""))
    assert table == f"{number:,} orders in the table"
    assert topic.startswith(f"{number:,} orders in the topic")
    # Two hundred more, and four of five of them.
    assert number > 100
    assert difference == "0 missing, 0 that were rolled back"


def test_a_payment_is_told_once_it_is_made_though_the_service_died(tmp_path: Path) -> None:
    example = "04-payment-with-look-back"
    lines = run_example(tmp_path, example, **{"127.0.0.1:8791": f"127.0.0.1:{free_port()}"})
    told = [line for line in lines if line.endswith("is in the topic")]
    assert sorted(told) == [f"payment {number} is in the topic" for number in (1, 2)]
    assert {line for line in lines if line.startswith("asked")} == {
        "asked about payment 2: committed",
        "asked about payment 3: rolled_back",
    }
    assert "ended" in lines  # what look-back says at SIGTERM


def test_each_order_is_handled_once_though_it_is_read_again(tmp_path: Path) -> None:
    lines = run_example(tmp_path, "05-handle-once-consumer")
    (again,) = re.findall(r"0 handled now, (\d+) read again and left out", lines[-3])
    assert int(again) > 200
    assert lines[-2] == f"{again} demands for {again} orders"


SMALL_SERVICES = ROOT / "examples" / "06-small-services"
PLACED_AND_PAID = ["orders: [1, 2]", "backlog_outbox: [1, 2]", "payments: [1, 2]"]


@pytest.mark.timeout(600)
def test_small_services_take_in_the_small_distribution_and_nothing_else(tmp_path: Path) -> None:
    """Both, by the commands of their page, in an environment that pip has just made."""
    lines = run_example(tmp_path, SMALL_SERVICES.name)
    told = [line for line in lines if line.endswith(": [1, 2]")]
    assert told == 2 * PLACED_AND_PAID, "\n".join(lines)
    (made,) = (tmp_path / "build" / "shops" / "lib").glob("python*")
    assert (made / "site-packages" / "backlogctl_delivery").is_dir()
    assert not (made / "site-packages" / "backlogctl").exists()


def test_a_small_service_tells_of_what_it_committed_and_handles_it_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fastapi_shop.py", "try_shop.py"):
        shutil.copy(SMALL_SERVICES / name, here)
    command = [sys.executable, "try_shop.py", "fastapi_shop"]
    # A broker of its own: it names its topic, as the pages do.
    with EmbeddedKafka.start(here / "kafka") as own:
        monkeypatch.setenv("SHOP_KAFKA", own.bootstrap)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[:3] == PLACED_AND_PAID, done.stderr


@pytest.mark.parametrize("name", ["fastapi_shop", "django_shop"])
def test_a_small_service_is_under_twenty_lines_beside_its_imports(name: str) -> None:
    lines = (SMALL_SERVICES / f"{name}.py").read_text().splitlines()
    apart = re.compile(r"$|from |import |#| *\"\"\"")
    assert 10 < sum(not apart.match(line) for line in lines) < 20


@pytest.mark.parametrize("name", ["03-order-service-with-outbox", "05-handle-once-consumer"])
def test_no_more_is_needed_than_the_page_says(name: str) -> None:
    """An application takes the room in with a few lines: these are all that name it."""
    (program,) = (ROOT / "examples" / name).glob("[ho]*_*.py")
    taken = re.findall(
        r"^.*\b(?:outbox|Outbox|marks|Marks)\b.*$", program.read_text(), re.MULTILINE
    )
    assert 0 < len(taken) < 10


_TYPED_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TOPICS = ("orders", "look_back_msg", "payments")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of its own: the pages name their topics."""
    with EmbeddedKafka.start(tmp_path_factory.mktemp("kafka")) as running:
        admin = make_admin(properties_of(running.bootstrap))
        for name in _TOPICS:
            create_topic(admin, name, partitions=1, replication=1, config={}, deadline=Deadline(60))
        yield running


def read_blocks(page: str, language: str = "python") -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return [block for found, block in _TYPED_BLOCK.findall(text) if found == language]


def run_blocks(page: str, number: slice, **changes: str) -> dict[str, Any]:
    """Runs some of them in one namespace."""
    names: dict[str, Any] = {"__name__": page}
    for block in read_blocks(page)[number]:
        for before, after in changes.items():
            block = block.replace(before, after)
        exec(compile(block, page, "exec"), names)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_values(kafka: EmbeddedKafka, topic: str) -> list[bytes | None]:
    return [m.value() for m in read_all(properties_of(kafka.bootstrap), topic, [0])]


def test_the_outbox_the_web_service_and_the_consumer(here: Path, broker: EmbeddedKafka) -> None:
    address = {"localhost:9092": broker.bootstrap}
    names = run_blocks("outbox.md", slice(0, 2), **address)
    with TestClient(names["app"]) as client:
        told = client.post("/orders/2")
        assert told.status_code == 200
        assert client.portal is not None
        client.portal.call(names["async_engine"].dispose)
    assert read_values(broker, "orders") == [b'{"id": 1}', b'{"id": 2}']
    last = read_all(properties_of(broker.bootstrap), "orders", [0])[-1]
    assert find_header(last.headers(), EVENT_ID) == told.json()["message"]  # type: ignore[arg-type]
    # The consumer of the other page reads them, and reads them again.
    names = run_blocks("idempotent-consumer.md", slice(0, 2), **address, **{"poll(10)": "poll(4)"})

    async def handle_again() -> None:
        await names["handle"](last)
        await names["async_engine"].dispose()

    asyncio.run(handle_again())
    names["consumer"].close()
    with sqlite3.connect(here / "payments.db") as payments:
        assert payments.execute("SELECT order_id FROM payments").fetchall() == [("1",), ("2",)]


def test_the_table_of_the_outbox_by_alembic(pg_url: str) -> None:
    """A migration, and a comparison that finds nothing more to do."""
    names = run_blocks("outbox.md", slice(2, 3))
    engine = create_engine(pg_url)
    own = MetaData()
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            assert compare_metadata(context, [own, backlogctl_delivery.outbox.metadata])  # type: ignore[arg-type]
            names["upgrade"]()
            assert compare_metadata(context, [own, backlogctl_delivery.outbox.metadata]) == []  # type: ignore[arg-type]
            names["downgrade"]()
        assert inspect(connection).get_table_names() == []
    engine.dispose()


def test_the_table_of_marks_by_alembic(pg_url: str) -> None:
    own = MetaData()
    marks = Marks("payments_handled", metadata=own)
    engine = create_engine(pg_url)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, own)
        with Operations.context(context) as op:
            marks.create_tables(op.get_bind())
        assert compare_metadata(context, own) == []
    engine.dispose()


def test_the_marks_in_redis(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedRedis() as redis_server:
        for _ in range(2):
            run_blocks("idempotent-consumer.md", slice(2, 3), **{"6379": str(redis_server.port)})
    assert capsys.readouterr().out == "the mail is sent\n"


def test_look_back_and_its_answers(here: Path, broker: EmbeddedKafka) -> None:
    names = run_blocks("look-back.md", slice(0, 2), **{"localhost:9092": broker.bootstrap})
    envelopes = [read_envelope(value) for value in read_values(broker, "look_back_msg")]
    assert isinstance(envelopes[0], Prepared)
    assert (envelopes[0].topic, envelopes[0].value) == ("payments", b'{"amount": 10}')
    assert envelopes[1].event == "committed"
    with sqlite3.connect(here / "payments.db") as payments:
        payments.execute("INSERT INTO payments VALUES ('42', 'paid')")
    client = TestClient(names["app"])
    for number, status in (("42", "committed"), ("43", "rolled_back")):
        question = {"biz_type": "payment", "biz_id": number}
        assert client.post("/look-back", json=question).json() == {"status": status}
    # What was answered stays true.
    payments = sqlite3.connect(here / "payments.db")
    with pytest.raises(sqlite3.IntegrityError):
        payments.execute("INSERT INTO payments VALUES ('43', 'paid')")
    payments.close()


def test_the_configuration_of_look_back(here: Path) -> None:
    (block,) = read_blocks("look-back.md", "yaml")
    clusters = {"clusters": {"main": {"bootstrap.servers": "localhost:9092"}}}
    file = here / "backlog.yaml"
    file.write_text(yaml.safe_dump(clusters) + block)
    config = load_config(file, {"LOOK_BACK_PASSWORD": "p", "ORDERS_TOKEN": "t"})
    assert config.look_back is not None
    assert set(config.look_back.services) == {"payments", "orders"}


PROGRAM = Path(__file__).parents[1] / "examples" / "order_consumer.py"
KEYS, EACH = 40, 100


def publish_orders(properties: dict[str, str], topic: str, numbers: range) -> None:
    producer = make_producer(properties)
    for number in numbers:
        for key in range(KEYS):
            value = json.dumps({"number": number}).encode()
            producer.produce(topic, value, f"order-{key}".encode(), key % 6)
    assert producer.flush(90) == 0


def read_log(log: Path) -> dict[str, list[int]]:
    """The numbers of each key, in the order in which they were first handled."""
    found: dict[str, list[int]] = defaultdict(list)
    lines = [
        line.split(" ") for path in log.glob("*.log") for line in path.read_text().splitlines()
    ]
    for _, key, number in sorted(lines, key=lambda line: int(line[0])):
        if int(number) not in found[key]:
            found[key].append(int(number))
    return found


def test_orders_are_handled_at_least_once_and_in_order_while_members_come_and_go(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    properties, name, log = properties_of(kafka.bootstrap), topic(partitions=6), tmp_path / "log"
    fleet = Fleet("orders", Role.ORIGINAL, name, group, kafka.bootstrap, tmp_path / "fleet")
    document: dict[str, Any] = {
        "launcher": "process",
        "command": [sys.executable, str(PROGRAM)],
        "environment": {"ORDER_LOG": str(log), "ORDER_RATE": "400"},
        "stop_within": "90s",
    }
    launcher = ProcessLauncher(Consumers.model_validate(document))

    def is_read() -> bool:
        ends = verbs.list_offsets(properties, name, range(6), "latest")
        return verbs.committed_offsets(properties, group, name, range(6)) == ends

    publish_orders(properties, name, range(EACH // 2))
    try:
        launcher.scale(fleet, 2, lambda: None)
        wait_until(log.exists)
        launcher.scale(fleet, 6, lambda: None)
        publish_orders(properties, name, range(EACH // 2, EACH))
        launcher.scale(fleet, 3, lambda: None)
        wait_until(is_read, what="all is committed")
    finally:
        launcher.stop(fleet, lambda: None)
    exits = [consumer.exit_code for consumer in launcher.list_consumers(fleet)]
    assert not [code for code in exits if code]
    # They left the group by themselves: no session had to end.
    assert verbs.describe_group_state(properties, group).members == ()
    assert read_log(log) == {f"order-{key}": list(range(EACH)) for key in range(KEYS)}


_LOOKED_AT = "3.0.12"
_LOOK_AGAIN = f"""
kafka-python is {kafka.__version__}; its private parts were last looked at in {_LOOKED_AT}. Before
you write the new version here, run tests/monitoring/test_groups*.py and look again at:
- backlogctl/kafka/raw_client.py: `_manager` (call_soon, send, cluster.brokers), what `call_soon` gives
  back, `_closed` beside `__new__`, and close() of a client that could not connect
- backlogctl/kafka/coordinator.py: `_list_group_offsets_requests`
- backlogctl/kafka/schemas: `ApiMessage` with `load_json`; does it have these requests itself by now?
- backlogctl/kafka/raw_client.py: `_manager` (broker_version_data, cluster.add_coordinator)
"""


def test_the_version_whose_private_parts_were_looked_at() -> None:
    assert kafka.__version__ == _LOOKED_AT, _LOOK_AGAIN


def test_the_private_parts_are_there() -> None:
    made = getsource(KafkaAdminClient.__init__)
    for name in ("_manager", "_closed"):
        assert f"self.{name} = " in made, _LOOK_AGAIN
    closing = getsource(KafkaAdminClient.close)
    assert "_closed" in closing, _LOOK_AGAIN
    assert hasattr(KafkaAdminClient, "_list_group_offsets_requests"), _LOOK_AGAIN


def test_the_files_that_use_them_are_named() -> None:
    """A new one is looked at too."""
    root = Path(__file__).parents[1]
    using = {
        str(path.relative_to(root))
        for folder in (
            "backlogctl",
            "delivery",
            "monitoring",
            "fanout",
            "spark_backfill",
            "replay",
            "sandbox",
        )
        for path in (root / folder).rglob("*.py")
        if "from kafka" in (text := path.read_text())
        and ("_manager" in text or "KafkaAdminClient.__new__" in text)
    }
    assert using
    assert [file for file in sorted(using) if file not in _LOOK_AGAIN] == []
