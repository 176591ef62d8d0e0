"""Lets a slow consumer lose messages on a real broker, and pictures what on-call sees.

Writes docs/img/losing.png and lost.png, and prints what `backlogctl status` says at both moments.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from backlog.kafka.admin import create_topic
from sandbox.embedded import EmbeddedKafka
from tests.monitoring.slow_shop import SlowShop, make_settings

ROOT = Path(__file__).resolve().parents[1]
COMMAND = Path(sys.executable).with_name("backlogctl")
RETENTION = 75.0


def main() -> None:
    """Runs the story; about two minutes."""
    pictures = ROOT / "docs" / "img"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with EmbeddedKafka.start(directory / "kafka") as kafka:
            run_story(directory, kafka.bootstrap, pictures)


def run_story(directory: Path, bootstrap: str, pictures: Path) -> None:
    properties = {"bootstrap.servers": bootstrap}
    create_topic(properties, "orders", partitions=1, config=make_settings(RETENTION))
    write_config(directory, bootstrap)
    shop = SlowShop(properties, "orders", "order-service", 2000.0, 900.0)
    shop.start()
    environment = {**os.environ, "BACKLOG_CONFIG": str(directory / "backlog.yaml")}
    watch = subprocess.Popen(
        [COMMAND, "watch", "--listen", "127.0.0.1:0"],
        cwd=directory,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = find_url(watch)
        begun = time.monotonic()
        status = await_verdict(url, "losing", environment, directory)
        time.sleep(max(0.0, 55 - (time.monotonic() - begun)))
        status = await_verdict(url, "losing", environment, directory)
        told_at = time.monotonic()
        picture(url, pictures / "losing.png", environment, directory)
        while shop.overtaken_at is None:
            time.sleep(0.1)
        after = shop.overtaken_at - told_at
        text = (
            f"announced for {status['seconds_to_loss']:.1f} s later; it came after {after:.1f} s\n"
        )
        sys.stdout.write(text)
        await_verdict(url, "lost", environment, directory)
        picture(url, pictures / "lost.png", environment, directory)
    finally:
        watch.terminate()
        watch.wait(20)
        shop.stop()


def write_config(directory: Path, bootstrap: str) -> None:
    """A stream that could be drained: its consumers are known."""
    config = {
        "clusters": {"main": {"bootstrap.servers": bootstrap}},
        "watch": {"interval": "1s", "window": "15s", "horizon": "10m"},
        "streams": {
            "orders": {
                "cluster": "main",
                "topic": "orders",
                "group": "order-service",
                "consumers": {"launcher": "process", "command": ["order-service"], "replicas": 1},
            }
        },
    }
    (directory / "backlog.yaml").write_text(json.dumps(config), encoding="utf-8")


def find_url(watch: subprocess.Popen[str]) -> str:
    assert watch.stderr is not None
    for line in watch.stderr:
        if found := re.search(r"http://[^/ ]+", line):
            return found[0]
    raise SystemExit("it printed no address")


def await_verdict(
    url: str, verdict: str, environment: dict[str, str], at: Path
) -> dict[str, float]:
    """Waits until the metrics show the verdict; returns the stream's entry of `status`."""
    while (
        f'verdict="{verdict}"'
        not in httpx.get(f"{url}/metrics", headers={"Accept-Encoding": "identity"}).text
    ):
        time.sleep(0.5)
    printed = subprocess.run(
        [COMMAND, "status", "--json"], env=environment, cwd=at, capture_output=True, check=True
    )
    entry: dict[str, float] = json.loads(printed.stdout)["streams"][0]
    return entry


def picture(url: str, file: Path, environment: dict[str, str], at: Path) -> None:
    subprocess.run([COMMAND, "status"], env=environment, cwd=at, check=True)
    file.parent.mkdir(exist_ok=True)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(f"{url}/streams/orders")
        page.screenshot(path=str(file), full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
