"""compose.yaml: by its schema, and by what the stack promises."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.docker.compose import DOCKER, ROOT, fill_in, read_compose

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
    for text in service.get("volumes", ()):
        yield text.split(":")


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
    for text in ("${A}", "$A"):
        with pytest.raises(ValueError, match="no default"):
            fill_in(text)


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
