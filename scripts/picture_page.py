"""Fills a ledger with a night on call, serves the page and takes its pictures into docs/img/."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
OUT = ROOT / "docs/img"
DESKTOP, PHONE = (1180, 800), (390, 844)
COLOURS = 128
MARGIN = 12


@dataclass(frozen=True)
class Shot:
    """One picture: what is looked at, how wide, and how much of it."""

    name: str
    path: str
    size: tuple[int, int]
    scheme: str
    height: int | None = None
    part: str = ""  # a CSS selector; without it the page from its top


def list_shots(ids: dict[str, str]) -> list[Shot]:
    """Those of the documentation first; `--all OUT` takes the others too."""
    return [
        Shot("page-overview", "", DESKTOP, "light"),
        Shot("page-stream", "streams/payments", DESKTOP, "light"),
        Shot("page-recovery", f"recoveries/{ids['shipments']}", DESKTOP, "dark", 1100),
        Shot("page-phone", "", PHONE, "dark", 1500),
        Shot("all-overview-dark", "", DESKTOP, "dark"),
        Shot("all-orders", "streams/orders", DESKTOP, "dark"),
        Shot("all-clicks", "streams/clicks", DESKTOP, "light"),
        Shot("all-rebuild", f"recoveries/{ids['invoices']}", DESKTOP, "light"),
        Shot("all-expand-light", f"recoveries/{ids['shipments']}", DESKTOP, "light"),
        Shot("all-phone-stream", "streams/payments", PHONE, "light"),
        Shot("all-phone-recovery", f"recoveries/{ids['shipments']}", PHONE, "light"),
        Shot("page-doctor", "streams/orders", DESKTOP, "light"),
        Shot("page-delivery", "", DESKTOP, "light", part="#delivery"),
        Shot("all-delivery-dark", "", DESKTOP, "dark", part="#delivery"),
        Shot("all-phone-delivery", "", PHONE, "light", part="#delivery"),
        Shot("all-phone-delivery-dark", "", PHONE, "dark", part="#delivery"),
        Shot("all-phone-orders", "streams/orders", PHONE, "light"),
        Shot("all-phone-clicks", "streams/clicks", PHONE, "dark"),
    ]


@contextmanager
def serve_night() -> Iterator[tuple[str, dict[str, str]]]:
    """The page on a free port, and the newest recovery of each stream."""
    import uvicorn

    from replay.console.page.app import make_page
    from tests.replay.console.page.night import NOW
    from tests.replay.console.page.story import tell_night

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
        ids = {one.stream: one.id for one in night.ledger.recoveries.list()}
        yield f"http://127.0.0.1:{port}/", ids
        server.should_exit = True
        thread.join()
        night.ledger.close()


def shrink(path: Path) -> None:
    """Few colours are enough for a page, and make a fifth of the bytes."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> None:
    """`picture_page.py` remakes docs/img; `picture_page.py DIR` takes every picture into DIR."""
    from playwright.sync_api import sync_playwright

    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    with serve_night() as (url, ids), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        for shot in list_shots(ids):
            if shot.name.startswith("all-") and out == OUT:
                continue
            width, height = shot.size
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if shot.scheme == "dark" else "light",
                device_scale_factor=1.5 if shot.size == PHONE else 1,
            )
            page.goto(url + shot.path)
            path = out / f"{shot.name}.png"
            whole = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": min(shot.height or whole, whole)})
            if shot.part:
                box = page.locator(shot.part).bounding_box()
                assert box is not None
                clip = {"x": 0, "y": box["y"] - MARGIN, "width": width}
                page.screenshot(path=path, clip={**clip, "height": box["height"] + 2 * MARGIN})
            else:
                page.screenshot(path=path)
            shrink(path)
            print(f"{path} {path.stat().st_size // 1000} kB")  # noqa: T201
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
