"""Airflow's pages as a person on call uses them, in the Chromium of the machine."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from playwright.sync_api import TimeoutError as PlaywrightTimeout

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FrameLocator, Page

RECOVER = "recover_backlog"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_MS = 120_000


@contextmanager
def open_browser() -> Iterator[Browser]:
    """The machine's own; none is downloaded."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    assert path, f"none of {', '.join(_NAMES)} is here: run scripts/need.sh chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=_PATIENCE_MS
        )
        yield opened
        opened.close()


class Visit:
    """One person in Airflow.

    Attributes:
        clicks: how many it took so far, after the login.
    """

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.page: Page = browser.new_page(viewport={"width": 1440, "height": 900})
        self.page.set_default_timeout(_PATIENCE_MS)
        self.clicks = 0

    def log_in(self, user: str, password: str) -> None:
        self.page.goto(f"{self.address}/auth/login")
        self.page.fill("input[name=username]", user)
        self.page.fill("input[name=password]", password)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(f"{self.address}/")

    def open_form(self) -> None:
        """The DAG, and its form."""
        self.page.goto(f"{self.address}/dags/{RECOVER}")
        self._click(self.page.get_by_role("button", name="Trigger").first)
        self.page.get_by_role("dialog").get_by_text("Every plan is shown").wait_for()

    def choose(self, field: str, words: str) -> None:
        dialog = self.page.get_by_role("dialog")
        self._click(dialog.locator(f"#element_{field}").get_by_role("combobox").first)
        self.page.keyboard.type(words)
        self.page.keyboard.press("Enter")

    def fill_existing(self, section: str, field: str, text: str) -> None:
        """Writes into a field of a section that is closed at first."""
        dialog = self.page.get_by_role("dialog")
        self._click(dialog.get_by_role("button", name=section))
        dialog.locator(f"[name=element_{field}]").fill(text)

    def trigger(self) -> str:
        """Sends the form; the run's id."""
        dialog = self.page.get_by_role("dialog")
        self._click(dialog.get_by_role("button", name="Trigger", exact=True))
        self.page.wait_for_url(re.compile(r"/runs/"))
        return self.page.url.split("/runs/")[1].split("/")[0]

    def open_question(self, run_id: str, task_id: str) -> None:
        """The plan that waits."""
        task = f"{self._run(run_id)}/tasks/{task_id}"
        limit = time.monotonic() + _PATIENCE_MS / 1000
        while time.monotonic() < limit:
            # Opened before there is a question it does not look again.
            self.page.goto(f"{task}/required_actions")
            with suppress(PlaywrightTimeout):
                self.page.get_by_role("button", name="Approve").wait_for(timeout=10_000)
                return
        raise AssertionError(f"{task_id} of {run_id} asked nothing")

    def sees_buttons(self) -> bool:
        """Whether a person can answer without scrolling."""
        box = self.page.get_by_role("button", name="Approve").bounding_box()
        return box is not None and box["y"] + box["height"] <= 900

    def answer(self, option: str) -> None:
        self._click(self.page.get_by_role("button", name=option, exact=True))

    def open_backlogs(self) -> FrameLocator:
        self._click(self.page.get_by_text("Backlogs").first)
        return self.page.frame_locator("iframe")

    def open_recovery(self, run_id: str) -> FrameLocator:
        """Our page, in its tab of the run."""
        return self._open_tab(run_id, "Recovery")

    def open_report(self, run_id: str) -> FrameLocator:
        return self._open_tab(run_id, "Report")

    def _open_tab(self, run_id: str, name: str) -> FrameLocator:
        self.page.goto(self._run(run_id))
        self._click(self.page.get_by_role("link", name=name, exact=True))
        return self.page.frame_locator("iframe")

    def _run(self, run_id: str) -> str:
        return f"{self.address}/dags/{RECOVER}/runs/{quote(run_id, safe='')}"

    def _click(self, what: object) -> None:
        what.click()  # type: ignore[attr-defined]
        self.clicks += 1
