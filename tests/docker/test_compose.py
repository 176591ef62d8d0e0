"""The compose stack: its promises, what it mounts and builds, and its services as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from confluent_kafka import Producer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

from backlogctl.clock import Deadline
from backlogctl.config import Config, load_config
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import free_port
from backlogctl_delivery.lookback.producer import LookBackProducer
from tests.kit.kafka import properties_of, read_all, wait_until
from tests.kit.prometheus import run_promtool
from tests.kit.services import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
FILE = DOCKER / "compose.yaml"
_VARIABLE = re.compile(r"\$\$|\$\{([A-Z_]+)(:-([^}]*))?\}|\$")


def fill_in(text: str) -> str:
    """The text with each variable's default.

    Raises:
        ValueError: a `$` that compose would take for a variable without a default.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[2] is None:
            raise ValueError(f"no default: {text}")
        return match[3]

    return _VARIABLE.sub(replace, text)


def visit(value: Any) -> Any:
    """The same for a document."""
    if isinstance(value, dict):
        return {key: visit(item) for key, item in value.items()}
    if isinstance(value, list):
        return [visit(item) for item in value]
    return fill_in(value) if isinstance(value, str) else value


def read_compose() -> dict[str, Any]:
    """The file, merged and filled in."""
    found: dict[str, Any] = visit(yaml.safe_load(FILE.read_text()))
    return found


def read_instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction's name and its text; lines that go on are joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in lines if line.strip()))
    split = (line.strip().partition(" ") for line in joined.splitlines())
    return [(name.upper(), re.sub(r"\s+", " ", rest).strip()) for name, _, rest in split]


COMPOSE = read_compose()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
NAMES = [
    *BROKERS,
    *("database", "shop-database", "init", "exporter", "prometheus", "grafana"),
    *("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"),
    *("spark-master", "spark-worker", "shop-producer", "shop-consumers", "outbox", "lookback"),
]
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text())


def list_mounts(service: dict[str, Any]) -> Iterator[list[str]]:
    for mount in service.get("volumes", ()):
        yield mount.split(":")


def list_commands(service: dict[str, Any]) -> str:
    return json.dumps([service.get("command"), service.get("healthcheck", {}).get("test")])


def test_schema_accepts_the_file_and_refuses_another() -> None:
    check = jsonschema.Draft7Validator(SCHEMA)
    assert [error.message for error in check.iter_errors(COMPOSE)] == []
    wrong = {**COMPOSE, "services": {"kafka-1": {**SERVICES["kafka-1"], "portz": []}}}
    assert list(check.iter_errors(wrong))


def test_every_part_of_the_stack_is_there() -> None:
    assert sorted(SERVICES) == sorted(NAMES)


def test_a_variable_without_a_default_is_seen() -> None:
    assert fill_in("${A:-3} $$B") == "3 $B"
    for unset in ("${A}", "$A"):
        with pytest.raises(ValueError, match="no default"):
            fill_in(unset)


@pytest.mark.parametrize("name", NAMES)
def test_service(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":v?\d+\.\d+\.\d+$|^postgres:\d+\.\d+$", service["image"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if "build" in service:
        assert service["image"] == f"backlogctl:{read_version()}"
        assert (DOCKER / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).exists()
        assert "user" not in service  # the image's: its Dockerfile is checked
    else:
        assert service["user"] not in ("root", "0")
    if name == "init":
        assert service["restart"].startswith("on-failure")
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"
    for port in service.get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    assert not service.get("privileged")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_service_names_is_there(name: str) -> None:
    service = SERVICES[name]
    for needed, how in service.get("depends_on", {}).items():
        condition = how["condition"]
        assert condition == "service_completed_successfully" if needed == "init" else True
        assert ("healthcheck" in SERVICES[needed]) == (condition == "service_healthy")
    for origin, target, *mode in list_mounts(service):
        assert target.startswith("/")
        if origin.startswith("."):
            assert (DOCKER / origin).resolve().exists(), origin
            assert mode == ["ro"]
        else:
            assert origin in COMPOSE["volumes"]
    for secret in service.get("secrets", ()):
        assert secret in COMPOSE["secrets"]
    for path in re.findall(r"/opt/shop/(\w+\.py)", list_commands(service)):
        assert (DOCKER / "shop" / path).exists(), path
    read = set(re.findall(r"/run/secrets/([\w.]+)", json.dumps(service)))
    assert read <= set(service.get("secrets", ()))


def test_ports_are_published_once() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len({port.rsplit(":", 1)[0] for port in ports}) == len(ports) == 5


def test_volumes_and_secrets_are_used() -> None:
    mounted = {mount[0] for service in SERVICES.values() for mount in list_mounts(service)}
    assert set(COMPOSE["volumes"]) <= mounted
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", ())}
    assert set(COMPOSE["secrets"]) == used


def test_no_secret_stands_in_the_environment() -> None:
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if re.search(r"(?i)password|secret|fernet|sql_alchemy_conn", key):
                assert re.search(r"(_FILE|_CMD|_PASSWORDS_FILE)$", key), key
                assert "/run/secrets/" in value or value == "/var/lib/airflow/passwords.json"


def test_kafka_keeps_three_replicas_and_needs_two() -> None:
    for number, name in enumerate(BROKERS, start=1):
        told = SERVICES[name]["environment"]
        assert told["KAFKA_NODE_ID"] == number
        assert told["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
        assert told["KAFKA_DEFAULT_REPLICATION_FACTOR"] == 3
        assert told["KAFKA_MIN_INSYNC_REPLICAS"] == 2
        assert told["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == 3
        assert told["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == 3
        assert told["KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"] == 2
        assert told["KAFKA_PROCESS_ROLES"] == "broker,controller"
        voters = told["KAFKA_CONTROLLER_QUORUM_VOTERS"]
        assert voters == ",".join(f"{n}@{broker}:9093" for n, broker in enumerate(BROKERS, start=1))
    assert len({SERVICES[name]["environment"]["CLUSTER_ID"] for name in BROKERS}) == 1


def test_staged_messages_are_shared_by_all_who_read_or_write_them() -> None:
    sharing = {
        name
        for name, service in SERVICES.items()
        if ["staging", "/var/lib/backlogctl/staging"] in list(list_mounts(service))
    }
    assert {"airflow-scheduler", "exporter", "spark-worker"} <= sharing


def read_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


DOCKERFILE = DOCKER / "Dockerfile"
INSTRUCTIONS = read_instructions(DOCKERFILE.read_text())


def load(tmp_path: Path) -> Config:
    """backlog.yaml with passwords that need encoding, from files elsewhere."""
    file = tmp_path / "backlog.yaml"
    text = (DOCKER / "backlog.yaml").read_text()
    for name in re.findall(r"\$\{file:/run/secrets/(\w+)\}", text):
        (tmp_path / name).write_text(f"p@ss/{name}\n")
    file.write_text(text.replace("/run/secrets/", f"{tmp_path}/"))
    return load_config(file, {})


def test_backlog_yaml_is_taken_and_fits_the_stack(tmp_path: Path) -> None:
    config = load(tmp_path)
    stream = config.stream("orders")
    assert stream.approval == "second_person"
    assert config.spark.master == "spark://spark-master:7077"
    assert config.watch.listen == "0.0.0.0:9321"
    assert config.kafka_ledger.replication == 3
    assert str(config.staging.dir) == "/var/lib/backlogctl/staging"
    text = (DOCKER / "backlog.yaml").read_text()
    names = set(re.findall(r"/run/secrets/(\w+)", text))
    readers = [
        service
        for service in SERVICES.values()
        if any("backlog.yaml" in mount for mount in service.get("volumes", ()))
    ]
    assert names
    assert readers
    assert all(names <= set(service["secrets"]) for service in readers)
    outbox = config.outboxes["shop_outbox"]
    assert config.look_back is not None
    for name, listen in (("outbox", outbox.listen), ("lookback", config.look_back.listen)):
        assert listen is not None
        (url,) = SERVICES[name]["healthcheck"]["test"][-1:]
        assert url == f"http://127.0.0.1:{listen.rpartition(':')[2]}/metrics"
        assert SERVICES[name]["stop_signal"] == "SIGTERM"
    assert stream.topic == SERVICES["init"]["environment"]["TOPIC"]
    assert stream.group == SERVICES["shop-consumers"]["environment"]["BACKLOG_GROUP"]
    assert stream.consumers is not None
    assert stream.consumers.replicas == int(
        SERVICES["shop-consumers"]["environment"]["SHOP_CONSUMERS"]
    )


def test_image_is_built_from_the_lock_file_and_is_not_root() -> None:
    text = DOCKERFILE.read_text()
    setup = (ROOT / "scripts/setup.sh").read_text()
    version = re.search(r"^UV_VERSION=(.+)$", setup, re.MULTILINE)
    assert version is not None
    assert ("ARG", f"UV_VERSION={version[1]}") in INSTRUCTIONS
    syncs = [rest for name, rest in INSTRUCTIONS if name == "RUN" and "uv sync" in rest]
    assert len(syncs) == 2
    assert all("--locked --no-dev --extra all" in sync for sync in syncs)
    images = [rest.split()[0] for name, rest in INSTRUCTIONS if name == "FROM"]
    assert images == ["debian:12.13-slim", "base", "base"]
    users = [rest for name, rest in INSTRUCTIONS if name == "USER"]
    assert users == ["10001:10001"]
    last = max(number for number, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM")
    assert "apt-get" not in " ".join(rest for _, rest in INSTRUCTIONS[last:])
    assert "latest" not in text


def test_image_holds_every_room() -> None:
    copied = {
        word
        for name, rest in INSTRUCTIONS
        if name == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    }
    copied = {name for name in copied if name.rpartition("/")[0] not in copied}
    wheel = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert wheel is not None
    rooms = {path.partition("/")[0] for path in re.findall(r'"([^"]+)"', wheel[1])}
    assert rooms <= copied
    allowed = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in allowed if line.startswith("!")}
    assert "*" in allowed
    for name in copied:
        assert (ROOT / name).exists()


def test_dockerfile_is_linted() -> None:
    command = [Path(sys.executable).parent / "hadolint", DOCKERFILE]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.prometheus
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    text = (DOCKER / "prometheus/prometheus.yml").read_text()
    assert "exporter:9321" in text
    assert "names: [outbox], type: A, port: 9406" in text
    assert "names: [lookback], type: A, port: 9322" in text
    assert "../monitoring/rules:/etc/prometheus/rules:ro" in SERVICES["prometheus"]["volumes"]
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace("/etc/prometheus/rules", str(ROOT / "monitoring/rules")))
    done = run_promtool("check", "config", file)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = list((ROOT / "monitoring" / "rules").glob("*.rules.yml"))
    assert f"{len(rules)} rule files" in done.stdout


def test_grafana_finds_its_data_source_and_dashboards() -> None:
    place = DOCKER / "grafana/provisioning"
    (source,) = yaml.safe_load((place / "datasources/prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["isDefault"]  # what a dashboard's variable begins with
    (provider,) = yaml.safe_load((place / "dashboards/backlogctl.yml").read_text())["providers"]
    mounts = dict(mount.split(":")[:2][::-1] for mount in SERVICES["grafana"]["volumes"])
    dashboards = (DOCKER / mounts[provider["options"]["path"]]).resolve()
    assert len([json.loads(path.read_text()) for path in dashboards.glob("*.json")]) == 4
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (dashboards / Path(home).name).exists()
    assert mounts["/etc/grafana/provisioning"] == "./grafana/provisioning"


def test_secrets_are_made_once_and_kept(tmp_path: Path) -> None:
    script = tmp_path / "docker" / "make_secrets.sh"
    (tmp_path / "docker/secrets").mkdir(parents=True)
    script.write_text((DOCKER / "make_secrets.sh").read_text())
    subprocess.run(["sh", script], check=True, capture_output=True)
    made = {path.name: path.read_text() for path in script.parent.glob("secrets/*")}
    assert set(made) == set(read_compose()["secrets"])
    assert len(set(made.values())) == len(made)
    assert set(json.loads(made["airflow_passwords.json"])) == {"admin", "oncall", "second"}
    assert made["airflow_database_password"] in made["airflow_database_url"]
    assert (script.parent / "secrets").stat().st_mode & 0o777 == 0o700
    for path in script.parent.glob("secrets/*"):
        assert path.stat().st_mode & 0o777 == 0o444
    again = subprocess.run(["sh", script], check=True, capture_output=True, text=True)
    assert again.stdout == ""
    assert made == {path.name: path.read_text() for path in script.parent.glob("secrets/*")}


_TOPICS = ("orders", "receipts", "look_back_msg", "announced")
_SECRETS = "/run/secrets"
# Each user may see the outbox, and do what it is for and no more.
_FORBIDDEN = {
    "outbox": "SELECT * FROM public.orders",
    "shop": "DELETE FROM backlog_outbox",
    "shop_reader": "UPDATE outbox.backlog_outbox SET state = 'sent'",
}


class Stack:
    """As much of it as these services need, at other addresses."""

    def __init__(self, place: Path, kafka: str, postgres: EmbeddedPostgres) -> None:
        self.kafka, self._postgres, self._place = kafka, postgres, place
        self._changes = {
            "kafka-1:9092,kafka-2:9092,kafka-3:9092": kafka,
            "@database/": f"@127.0.0.1:{postgres.port}/",
            "@shop-database/": f"@127.0.0.1:{postgres.port}/",
            "host=shop-database": f"host=127.0.0.1 port={postgres.port}",
            "0.0.0.0:9406": f"127.0.0.1:{free_port()}",
            "0.0.0.0:9322": f"127.0.0.1:{free_port()}",
            _SECRETS: str(place),
        }
        for service in ("database", "shop-database", "exporter", "shop-producer"):
            for secret in SERVICES[service]["secrets"]:
                (place / secret).write_text(f"p@ss/{secret}")
        (place / "backlog.yaml").write_text(self._move((DOCKER / "backlog.yaml").read_text()))
        for name in ("platform.sh", "shop.sh"):
            script = self._move((DOCKER / "postgres" / name).read_text())
            environment = {**os.environ, "POSTGRES_USER": "postgres", "PGHOST": "127.0.0.1"}
            environment["PGPORT"] = str(postgres.port)
            subprocess.run(["bash", "-c", script], check=True, env=environment)

    def run(self, *words: str) -> None:
        """A command to its end."""
        subprocess.run(self._find(list(words)), check=True, env=self._environment({}), cwd=ROOT)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """A service."""
        service = SERVICES[name]
        own = {key: self._move(str(value)) for key, value in service.get("environment", {}).items()}
        command = self._find(service["command"])
        return subprocess.Popen(command, env=self._environment(own), cwd=ROOT)

    def is_healthy(self, name: str) -> bool:
        """What its health check says."""
        test = SERVICES[name]["healthcheck"]["test"][1:]
        port = re.search(r":(\d+)/", test[-1])
        assert port is not None
        listen = self._changes[f"0.0.0.0:{port[1]}"]
        command = [sys.executable, str(DOCKER / "shop/healthy.py"), f"http://{listen}/metrics"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def connect(self, user: str, database: str = "shop") -> str:
        return f"postgresql+psycopg://{user}@127.0.0.1:{self._postgres.port}/{database}"

    def read_keys(self, topic: str) -> list[str]:
        return [
            (message.key() or b"").decode()
            for message in read_all(properties_of(self.kafka), topic, [0])
        ]

    def _move(self, words: str) -> str:
        for before, after in self._changes.items():
            words = words.replace(before, after)
        return words

    def _find(self, command: list[str]) -> list[str]:
        program, *rest = command
        if program == "backlogctl":
            return [sys.executable, "-m", "backlogctl.replay.cli", *rest]
        return [sys.executable, *(word.replace("/opt/shop", str(DOCKER / "shop")) for word in rest)]

    def _environment(self, own: dict[str, str]) -> dict[str, str]:
        file = str(self._place / "backlog.yaml")
        return {**os.environ, "BACKLOG_CONFIG": file, "PYTHONPATH": str(ROOT), **own}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with (
        EmbeddedKafka.start(tmp_path / "kafka") as kafka,
        EmbeddedPostgres() as postgres,
    ):
        admin = make_admin(properties_of(kafka.bootstrap))
        for name in _TOPICS:
            create_topic(admin, name, partitions=1, replication=1, config={}, deadline=Deadline(60))
        yield Stack(tmp_path, kafka.bootstrap, postgres)


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, as `docker compose stop`; its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def test_receipts_are_sent_and_what_was_prepared_is_forwarded(stack: Stack) -> None:
    # As `init` does, and once more, as after `up` again.
    for _ in range(2):
        stack.run("backlogctl", "outbox", "create", "--outbox", "shop_outbox")
    names = ("shop-producer", "outbox", "lookback")
    running = {name: stack.start(name) for name in names}
    try:
        for name in ("outbox", "lookback"):
            wait_until(lambda name=name: stack.is_healthy(name), what=f"{name} is healthy")  # type: ignore[misc]
        look_back = LookBackProducer(Producer(properties_of(stack.kafka)), service="shop")
        look_back.prepare("refund", "r-1", topic="announced", key="r-1", value="{}")
        look_back.commit("refund", "r-1")
        wait_until(lambda: len(stack.read_keys("receipts")) > 50, what="receipts are sent")
        wait_until(lambda: stack.read_keys("announced"), what="it is forwarded")
        assert end(running["shop-producer"]) == 0
        engine = create_engine(stack.connect("shop"))
        with engine.connect() as table:
            orders = sorted(table.scalars(text("SELECT order_id FROM orders")))
        engine.dispose()
        wait_until(lambda: len(stack.read_keys("receipts")) >= len(orders), what="all are sent")
        assert sorted(stack.read_keys("receipts")) == orders
        assert stack.read_keys("announced") == ["r-1"]
        assert [end(running[name]) for name in ("outbox", "lookback")] == [0, 0]
    finally:
        for process in running.values():
            process.kill()
            process.wait()

    for user, forbidden in _FORBIDDEN.items():
        engine = create_engine(stack.connect(user))
        with engine.connect() as connection:
            connection.execute(text("SELECT count(*) FROM outbox.backlog_outbox"))
            with pytest.raises(ProgrammingError, match="permission denied"):
                connection.execute(text(forbidden))
        engine.dispose()
