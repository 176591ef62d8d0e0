"""What the stack mounts and builds: the image, the configuration, Prometheus, Grafana, secrets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from backlogctl.config import Config, load_config
from tests.docker.compose import DOCKER, ROOT, read_compose, read_instructions
from tests.monitoring.prometheus import run_promtool

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
