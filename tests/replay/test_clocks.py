"""Several hosts with one ledger on PostgreSQL, whose clocks are an hour early and an hour late."""

from __future__ import annotations

import json
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

from backlogctl.clock import utc_now
from backlogctl.kafka.admin import alter_topic_config
from backlogctl.ledger import open_ledger, upgrade
from tests.conftest import MakeTopic
from tests.kit.kafka import leave_at, publish, wait_until
from tests.kit.processes import start_backlogctl
from tests.kit.shifted import HOST, MODULE, SHIFT
from tests.replay.expand.world import WITHIN

HOSTS = {"early": -3600, "exact": 0, "late": 3600}
NEAR = timedelta(seconds=60)


def start(directory: Path, host: str, *words: str) -> subprocess.Popen[str]:
    own = {HOST: host, SHIFT: str(HOSTS[host])}
    return start_backlogctl(directory, *words, environment=own, module=MODULE)


def test_watchers_whose_clocks_differ_write_one_past(
    properties: dict[str, str], topic: MakeTopic, group: str, pg_url: str, tmp_path: Path
) -> None:
    """Samples are in the ledger's time, forecasts go by it, and a wrong clock is told. One that is
    killed leaves nothing that keeps another from going on."""
    name = topic(1)
    publish(properties, name, {0: 20})
    leave_at(properties, group, name, {0: 2})
    alter_topic_config(properties, name, {"retention.ms": "7200000"})
    upgrade(pg_url)
    stream = {"cluster": "main", "topic": name, "group": group}
    watch = {"interval": "1s"}
    document = {
        "ledger": pg_url,
        "watch": watch,
        "clusters": {"main": properties},
        "streams": {"orders": stream},
    }
    (tmp_path / "backlog.yaml").write_text(json.dumps(document))
    began = utc_now()
    rounds = ("watch", "--no-serve", "--rounds")
    killed = start(tmp_path, "late", *rounds, "1000")
    others = {host: start(tmp_path, host, *rounds, "8") for host in HOSTS}
    with open_ledger(pg_url) as ledger:
        wait_until(lambda: len(ledger.samples.history("orders")) >= 3, 120.0)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        said = {host: process.communicate(timeout=WITHIN) for host, process in others.items()}
        assert {host: process.returncode for host, process in others.items()} == dict.fromkeys(
            HOSTS, 0
        ), said
        times = [one.taken_at for one in ledger.samples.history("orders")]
        assert min(times) >= began - NEAR
        assert max(times) <= utc_now() + NEAR
        assert ledger.gaps.list() == ()
    for host, (out, err) in said.items():
        wrong = f"clock of {host}: it is" in " ".join(err.split())
        assert wrong is (host != "exact"), (host, out + err)
    for host in HOSTS:
        process = start(tmp_path, host, "status", "orders", "--json")
        out, err = process.communicate(timeout=WITHIN)
        (partition,) = json.loads(out)["streams"][0]["partitions"]
        assert abs(partition["seconds_to_loss"] - 7200) < 300, (host, partition, err)
