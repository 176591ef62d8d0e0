"""Starts the stack and plays its story: losing, lost, held, and recovered by way of Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scripts.container_check.stack import Stack, run, say
from scripts.container_check.standins import HOME

_INSIDE = "BACKLOG_CHECK_INSIDE"
_NOT_HERE = ("grafana",)  # no package of Debian's
_SOCKETS = "/tmp"  # noqa: S108 - of the stand-in
_SLOW = {"SHOP_RETENTION_MS": "60000", "SHOP_HANDLED_PER_SECOND": "2"}
_MENDED = {"SHOP_HANDLED_PER_SECOND": "50", "SHOP_OFFSET_RESET": "earliest"}
_ALERTS = "http://prometheus:9090/api/v1/alerts"
_ENDED = ("airflow", "exporter", "shop-p", "spark", "outbox", "lookback")
_PREPARE = """
from confluent_kafka import Producer
from backlogctl_delivery.lookback.producer import LookBackProducer
producer = Producer({"bootstrap.servers": "kafka-1:9092", "acks": "all"})
look_back = LookBackProducer(producer, service="shop")
look_back.prepare("check", "1", topic="receipts", key="1", value="{}")
look_back.commit("check", "1")
"""
Results = list[tuple[str, str]]


def run_stack(source: Path, place: Path, actions: list[str]) -> None:
    """Starts all, plays the story, and prints what was seen."""
    if _INSIDE not in os.environ:
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        command += [sys.executable, "-m", "scripts.container_check", "run", str(place), *actions]
        raise SystemExit(
            subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode
        )
    run(f"{source}/docker/make_secrets.sh")
    HOME.mkdir(parents=True, exist_ok=True)
    play(source, place, actions)


def play(source: Path, place: Path, actions: list[str]) -> None:
    stack = Stack(source, place, _SLOW)
    results: Results = []
    try:
        _start(stack)
        _lose(stack, results)
        _recover(stack, results, actions)
        _deliver(stack, results)
        _end(stack, results)
    finally:
        for service in stack.services.values():
            state = f"{service.state}, {service.seconds:.0f} s"
            sys.stdout.write(f"{service.name:24}{service.user:18}{state}\n")
        for what, result in results:
            sys.stdout.write(f"{what:42}{result}\n")


def _start(stack: Stack) -> None:
    for name in stack.load_names():
        if name not in stack.services and name not in _NOT_HERE:
            stack.up(name)
    for name in stack.services:
        stack.wait_healthy(name)


def _lose(stack: Stack, results: Results) -> None:
    """Until the loss is on record, its retention held and its consumers mended."""
    began = time.monotonic()
    wanted = ["losing", "lost"]
    while time.monotonic() < began + 300:
        found = str(_run_command(stack, "status")["streams"][0]["verdict"])
        if found in wanted:
            results.append((f"status says {found}", f"after {time.monotonic() - began:.0f} s"))
            wanted.remove(found)
        if len({gap["partition"] for gap in _run_command(stack, "gaps")["gaps"]}) == 3:
            break
        time.sleep(2)
    results.append(("Prometheus: alerts", ", ".join(_list_alerts(stack))))
    held = _run_command(stack, "hold", "orders", "--for", "1h")
    results.append(("hold orders --for 1h", str(held)[:200]))
    gaps = _run_command(stack, "gaps")["gaps"]
    count = sum(gap["count"] for gap in gaps)
    results.append(("gaps", f"{count}, {sorted({gap['certainty'] for gap in gaps})}"))
    results.append(("shop-consumers ended by SIGTERM with", str(stack.stop("shop-consumers"))))
    stack.load({**_SLOW, **_MENDED})
    stack.start("shop-consumers")
    stack.wait_healthy("shop-consumers")


def _recover(stack: Stack, results: Results, actions: list[str]) -> None:
    script = Path(__file__).with_name("airflow_client.py").read_text()
    for action in actions:
        if action == "expand":
            _make_backlog(stack)
        done = stack.execute("airflow-api-server", "python", "-c", script, action, timeout=700)
        results.append((f"Airflow: recover_backlog, {action}", done.stdout.strip() or done.stderr))
    limit = time.monotonic() + 60
    while time.monotonic() < limit and _run_command(stack, "status")["streams"][0]["lag"] > 100:
        time.sleep(2)
    words = [
        "psql",
        "-h",
        _SOCKETS,
        "-U",
        "postgres",
        "-x",
        "-t",
        "-d",
        "shop",
        "-c",
        "TABLE audit",
    ]
    audit = stack.execute("shop-database", *words)
    results.append(("the shop's audit", " ".join(audit.stdout.split())))


def _deliver(stack: Stack, results: Results) -> None:
    """Receipts are sent by the outbox; what is prepared and committed is forwarded."""
    status = _run_command(stack, "outbox", "status", "--outbox", "shop_outbox")
    results.append(("outbox status", str({key: status[key] for key in ("pending", "parked")})))
    sent = ("outbox", "list", "--outbox", "shop_outbox", "--state", "sent", "-n", "1")
    results.append(("receipts are sent", str(bool(_run_command(stack, *sent)["messages"]))))
    done = stack.execute("lookback", "python", "-c", _PREPARE)
    limit, forwarded = time.monotonic() + 60, []
    while time.monotonic() < limit and not forwarded:
        forwarded = _run_command(stack, "lookback", "list", "--state", "forwarded")["messages"]
        time.sleep(1)
    said = f"{len(forwarded)} forwarded" if not done.returncode else done.stderr[-300:]
    results.append(("look-back", said))


def _make_backlog(stack: Stack) -> None:
    """Half a minute without consumers, which then are slow again."""
    stack.stop("shop-consumers")
    time.sleep(30)
    stack.load({**_SLOW, **_MENDED, "SHOP_HANDLED_PER_SECOND": "5"})
    stack.start("shop-consumers")
    stack.wait_healthy("shop-consumers")


def _end(stack: Stack, results: Results) -> None:
    names = [name for name in stack.services if name.startswith(_ENDED)]
    codes = {name: stack.stop(name) for name in names}
    results.append(("ended by SIGTERM with", str(codes)))


def _run_command(stack: Stack, *words: str) -> Any:
    """What the command says in the exporter's container."""
    done = stack.execute("exporter", "backlogctl", *words, "--json")
    if done.returncode:
        output = f"{done.stdout} {done.stderr[-2000:]}"
        raise SystemExit(f"backlogctl {words} ended with {done.returncode}: {output}")
    return json.loads(done.stdout)


def _list_alerts(stack: Stack) -> list[str]:
    ask = f"import urllib.request as u; print(u.urlopen('{_ALERTS}').read().decode())"
    document = json.loads(stack.execute("exporter", "python", "-c", ask).stdout)
    say("asked Prometheus")
    return sorted({alert["labels"]["alertname"] for alert in document["data"]["alerts"]})
