"""The pictures of the documentation: `python scripts/pictures.py demo|page|loss|airflow`.

`demo` runs the demo in a terminal and draws what it printed; `page` serves a night on call; `loss`
lets a slow consumer lose messages on a real broker, in two minutes; `airflow ADDRESS PASSWORD`
takes those of the Airflow runbook from a running `make airflow`, as `oncall`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
OUT = ROOT / "docs/img"
COMMAND = Path(sys.executable).with_name("backlogctl")
WIDTH, COLOURS, MARGIN = 100, 128, 12
DESKTOP, PHONE = (1180, 800), (390, 844)
# Progress bars are drawn over and over: only their last state belongs into a picture.
_CONTROL = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[A-GJK]|\x1b\[2K")
_SCENES = (" status", " plan rebuild", " approve", " run ")


def draw_demo() -> None:
    """The loss, the plan, the repair and the end; the rest would make the picture too long."""
    os.environ.update(COLUMNS=str(WIDTH), LINES="60", TERM="xterm-256color", COLORTERM="truecolor")
    pieces: list[bytes] = []

    def read(handle: int) -> bytes:
        pieces.append(data := os.read(handle, 65536))
        return data

    if pty.spawn([sys.executable, "-m", "examples.demo"], read):
        sys.exit("the demo failed; no picture was made")
    shown, keep = list[Text](), False
    for line in Text.from_ansi(_settle(b"".join(pieces).decode())).split("\n", allow_blank=True):
        has_gap = bool(shown and shown[-1].plain.strip())
        if line.plain.lstrip().startswith("$ backlogctl"):
            keep = any(scene in line.plain for scene in _SCENES)
            shown += [Text()] if keep and has_gap else []
        elif re.match(r"\d  \S", line.plain):
            keep = False
        if (keep or line.plain.startswith(("✔", "✘"))) and (line.plain.strip() or has_gap):
            shown.append(line)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        console.print(Text("\n").join(shown))
        console.save_svg(str(ROOT / "docs" / "demo.svg"), title="make demo")


def _settle(text: str) -> str:
    """What is left on the screen: a line that was drawn over counts in its last state."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if ups := len(re.findall(r"\x1b\[1A", line)):
            del lines[-ups:]
        parts = [part for part in line.split("\r") if _CONTROL.sub("", part).strip()]
        lines.append(_CONTROL.sub("", parts[-1]) if parts else "")
    return "\n".join(lines).strip("\n")


def keep(page: Any, name: str, **more: Any) -> None:
    """Few colours are enough for a page, and make a fifth of the bytes."""
    path = OUT / f"{name}.png"
    page.screenshot(path=path, **more)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


@contextmanager
def open_browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])


@contextmanager
def serve_night() -> Iterator[tuple[str, dict[str, str]]]:
    """The page on a free port, and the newest recovery of each stream."""
    import uvicorn

    from backlogctl.replay.web.page.app import make_page
    from tests.replay.web.page.night import NOW
    from tests.replay.web.page.story import tell_night

    with tempfile.TemporaryDirectory() as directory:
        night = tell_night(Path(directory))
        app = make_page(
            night.workspace,
            board=night.board,
            deliveries=lambda: night.deliveries,
            clock=lambda: NOW,
        )
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/", {r.stream: r.id for r in night.ledger.recoveries.list()}
        server.should_exit = True
        thread.join()
        night.ledger.close()


def picture_page() -> None:
    with serve_night() as (url, ids), open_browser() as browser:
        for name, path, size, scheme, height, part in (
            ("page-overview", "", DESKTOP, "light", None, ""),
            ("page-stream", "streams/payments", DESKTOP, "light", None, ""),
            ("page-recovery", f"recoveries/{ids['shipments']}", DESKTOP, "dark", 1100, ""),
            ("page-phone", "", PHONE, "dark", 1500, ""),
            ("page-doctor", "streams/orders", DESKTOP, "light", None, ""),
            ("page-delivery", "", DESKTOP, "light", None, "#delivery"),
        ):
            width, scale = size[0], 1.5 if size == PHONE else 1
            page = browser.new_page(
                viewport={"width": width, "height": size[1]},
                color_scheme=scheme,
                device_scale_factor=scale,
            )
            page.goto(url + path)
            whole = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": min(height or whole, whole)})
            clip = {}
            if part:
                box = page.locator(part).bounding_box()
                top, tall = box["y"] - MARGIN, box["height"] + 2 * MARGIN
                clip = {"clip": {"x": 0, "y": top, "width": width, "height": tall}}
            keep(page, name, **clip)
            page.close()


def picture_loss() -> None:
    """What on-call sees before and after, beside what `backlogctl status` says."""
    from backlogctl.kafka.admin import create_topic
    from backlogctl.sandbox.embedded import EmbeddedKafka
    from tests.monitoring.slow_shop import SlowShop, make_settings

    with tempfile.TemporaryDirectory() as name, EmbeddedKafka.start(Path(name) / "kafka") as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap}
        create_topic(properties, "orders", partitions=1, config=make_settings(75.0))
        consumers = {"launcher": "process", "command": ["order-service"], "replicas": 1}
        stream = {"cluster": "main", "topic": "orders", "group": "order-service"}
        config = {
            "clusters": {"main": properties},
            "watch": {"interval": "1s", "window": "15s", "horizon": "10m"},
            "streams": {"orders": {**stream, "consumers": consumers}},
        }
        (Path(name) / "backlog.yaml").write_text(json.dumps(config), encoding="utf-8")
        shop = SlowShop(properties, "orders", "order-service", 2000.0, 900.0)
        shop.start()
        words = [COMMAND, "watch", "--listen", "127.0.0.1:0"]
        watch = subprocess.Popen(words, cwd=name, stderr=subprocess.PIPE, text=True)
        try:
            assert watch.stderr is not None
            lines = (re.search(r"http://[^/ ]+", line) for line in watch.stderr)
            url = next(line[0] for line in lines if line)
            _await_verdict(url, "losing")
            time.sleep(55)
            _await_verdict(url, "losing")
            words = [COMMAND, "status", "--json"]
            status = subprocess.run(words, cwd=name, capture_output=True, check=True)
            expected, at = json.loads(status.stdout)["streams"][0]["seconds_to_loss"], time.time()
            _picture_stream(url, "losing", name)
            while shop.overtaken_at is None:
                time.sleep(0.1)
            sys.stdout.write(f"announced for {expected:.1f} s later: {time.time() - at:.1f} s\n")
            _await_verdict(url, "lost")
            _picture_stream(url, "lost", name)
        finally:
            watch.terminate()
            watch.wait(20)
            shop.stop()


def _await_verdict(url: str, verdict: str) -> None:
    plain = {"Accept-Encoding": "identity"}
    while f'verdict="{verdict}"' not in httpx.get(f"{url}/metrics", headers=plain).text:
        time.sleep(0.5)


def _picture_stream(url: str, name: str, directory: str) -> None:
    subprocess.run([COMMAND, "status"], cwd=directory, check=True)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(f"{url}/streams/orders")
        keep(page, name, full_page=True)


def picture_airflow(address: str, password: str) -> None:
    """Triggers a recovery of the shop's orders and sees it to its end; in between, the question
    whether to hold the payments' retention."""
    from tests.dags.browsing import Visit
    from tests.dags.browsing import open_browser as open_visit

    with open_visit() as browser:
        visit = Visit(browser, address.rstrip("/"))
        visit.log_in("oncall", password)
        visit.open_form()
        visit.choose("stream", "orders")
        visit.page.wait_for_timeout(1000)  # the dialog moves in
        keep(visit.page, "airflow-form")
        run_id = visit.trigger()
        visit.page.get_by_text("Required Action").first.wait_for(timeout=180_000)
        visit.open_question(run_id, "rebuild.approve")
        visit.page.wait_for_timeout(1000)
        keep(visit.page, "airflow-approval")
        visit.open_recovery(run_id).get_by_text("planned by").wait_for()
        keep(visit.page, "airflow-page")
        picture_hold(visit)
        visit.open_question(run_id, "rebuild.approve")
        visit.answer("Approve")
        shown = visit.open_report(run_id)
        while not shown.get_by_text("read back").first.is_visible():
            visit.page.wait_for_timeout(5000)
            shown = visit.open_report(run_id)
        visit.page.wait_for_timeout(1000)
        keep(visit.page, "airflow-report")


def picture_hold(visit: Any) -> None:
    visit.open_form()
    visit.choose("stream", "payments")
    visit.choose("action", "hold")
    run_id = visit.trigger()
    visit.open_question(run_id, "hold.approve")
    visit.page.wait_for_timeout(1000)
    keep(visit.page, "airflow-hold")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["demo"]:
            draw_demo()
        case ["page"]:
            picture_page()
        case ["loss"]:
            picture_loss()
        case ["airflow", address, password]:
            picture_airflow(address, password)
        case _:
            sys.exit(__doc__)
