"""The page in a real browser: one server and one browser for all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.monitoring.watch.board import ClusterPass
from backlogctl.replay.web.page.app import make_page
from tests.dags.browsing import open_browser
from tests.kit.kafka import wait_until
from tests.replay.web.page.night import NOW, Night, make_group, make_groups
from tests.replay.web.page.story import tell_night

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
LONG = "anamethatgoesonwithoutanyend" * 7
PHONE, DESKTOP = (360, 740), (1280, 900)
PATIENT = 120.0  # seconds; a browser on a busy machine


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    told = tell_night(tmp_path_factory.mktemp("night"), lean=True, more=[LONG])
    groups = (*make_groups(), make_group(LONG, LONG, "stall", 10**12, 10**15, 10**9))
    told.board.put_cluster(ClusterPass("main", NOW, 0.1, groups))
    yield told
    told.ledger.close()


@pytest.fixture(scope="module")
def address(night: Night) -> Iterator[str]:
    """The page on a free port."""
    import uvicorn

    app = make_page(
        night.workspace,
        board=night.board,
        deliveries=lambda: night.deliveries,
        clock=lambda: night.now,
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, PATIENT, "the page is served")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(PATIENT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


class Visit:
    """A browser's page that remembers what went wrong, and where it asked."""

    def __init__(self, browser: Browser, size: tuple[int, int], **options: Any) -> None:
        width, height = size
        self.wrong: list[str] = []
        self.asked: list[str] = []
        viewport: Any = {"width": width, "height": height}
        self.page: Page = browser.new_page(viewport=viewport, **options)
        self.page.set_default_timeout(PATIENT * 1000)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on(
            "console",
            lambda line: (
                self.wrong.append(line.text) if line.type in ("error", "warning") else None
            ),
        )

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def measure(self, script: str, about: Any = None) -> Any:
        """What the browser says."""
        return self.page.evaluate(script, about)


def list_paths(night: Night) -> list[str]:
    """Every kind of page."""
    ids = [one.id for one in night.ledger.recoveries.list()]
    names = ("payments", "clicks", "shipments", "orders", "emails", LONG)
    streams = [f"streams/{name}" for name in names]
    return ["", *streams, *(f"recoveries/{one}" for one in ids), "streams/nope"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it_and_nothing_overflows_fails_or_comes_from_elsewhere(
    browser: Browser, address: str, night: Night, scheme: str
) -> None:
    """By axe, the rules of WCAG; each page on a phone and on a desktop."""
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    with Visit(browser, PHONE, color_scheme=scheme) as visit:
        for path in list_paths(night):
            for width, height in (PHONE, DESKTOP):
                visit.page.set_viewport_size({"width": width, "height": height})
                # Anew: a page that looks again while axe looks at it may say that nobody answered.
                visit.page.goto(address + path)
                wide = visit.measure("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{path} at {width} is {wide} too wide"
                violations = Axe().run(visit.page).response["violations"]
                wrong = {one["id"]: [n["html"][:200] for n in one["nodes"]] for one in violations}
                assert not wrong, f"{path} at {width}"
        paper = visit.measure("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 22, 28)")
        assert all(url.startswith((address, "data:")) for url in visit.asked)
        lines = [line for line in visit.wrong if "404" not in line]
        assert not lines, "the page that is not there is the only thing said"


def test_from_the_overview_to_a_stream_to_its_recovery(
    browser: Browser, address: str, night: Night
) -> None:
    with Visit(browser, DESKTOP) as visit:
        visit.page.goto(address)
        visit.page.click("a:text-is('shipments')")
        visit.page.wait_for_url(f"{address}streams/shipments")
        assert visit.page.locator(".bar").count() == 6
        visit.page.click("main a:has-text('expand r-')")
        assert visit.page.locator("progress").get_attribute("value") == "16"
        visit.page.click("a.home")
        visit.page.wait_for_url(address)
        assert not visit.wrong


def test_bars_are_to_scale(browser: Browser, address: str, night: Night) -> None:
    status = night.board.seen.streams["payments"]
    with Visit(browser, DESKTOP) as visit:
        visit.page.goto(f"{address}streams/payments")
        widths = visit.measure(
            "[...document.querySelectorAll('.bar .seg.unread')].map(e => e.getBoundingClientRect().width)"
        )
    lags = [part.lag or 0 for part in status.partitions]
    assert [round(w / widths[0], 2) for w in widths] == pytest.approx(
        [lag / lags[0] for lag in lags], abs=0.03
    )


def test_it_looks_again_by_itself_and_keeps_its_place(
    browser: Browser, address: str, night: Night
) -> None:
    with Visit(browser, DESKTOP) as visit:
        visit.page.goto(f"{address}streams/payments")
        visit.page.click("summary")
        visit.measure("window.kept = true")
        bare = "Object.assign(document.createElement('details'), {open: true})"
        visit.measure(f"document.querySelector('main').append({bare})")
        night.now = NOW.replace(second=20)
        try:
            visit.measure("document.dispatchEvent(new Event('visibilitychange'))")
            visit.page.wait_for_selector("text=20 s ago")
        finally:
            night.now = NOW
        assert visit.measure("window.kept"), "the page was not loaded anew"
        assert visit.measure("document.querySelector('#numbers').open")
        assert visit.page.locator(".cmd button").count() == visit.page.locator(".cmd").count()
        visit.page.context.set_offline(True)
        visit.measure("document.dispatchEvent(new Event('visibilitychange'))")
        visit.page.wait_for_selector(".lost-contact", state="visible")


def test_a_command_is_copied(browser: Browser, address: str) -> None:
    with Visit(browser, DESKTOP) as visit:
        visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        visit.page.goto(address)
        # It says so for two seconds: who looks later would not see it.
        visit.measure(
            "button => { new MutationObserver(() => { window.said ??= button.textContent })"
            ".observe(button, {childList: true}) }",
            visit.page.locator(".cmd button").first.element_handle(),
        )
        visit.page.locator(".cmd button").first.click()
        wait_until(lambda: visit.measure("window.said"), PATIENT, "it is said")
        assert visit.measure("window.said") == "copied"
        assert visit.measure("navigator.clipboard.readText()") == "backlogctl plan rebuild payments"


def test_what_takes_long_to_copy_is_told_all_the_same_and_not_for_ever(
    browser: Browser, address: str
) -> None:
    with Visit(browser, DESKTOP) as visit:
        visit.page.goto(address)
        visit.measure(
            "() => { navigator.clipboard.writeText = () => new Promise(done => (window.end = done));"
            " window.later = []; window.setTimeout = work => later.push(work) }"
        )
        button = visit.page.locator(".cmd button").first
        button.click()
        wait_until(lambda: visit.measure("!!window.end"), PATIENT, "it is asked for")
        assert button.text_content() == "copy"
        visit.measure("() => { later.forEach(work => work()); later.length = 0; end() }")
        wait_until(lambda: visit.measure("later.length == 1"), PATIENT, "it is put off")
        assert button.text_content() == "copied"
        visit.measure("() => later[0]()")
        assert button.text_content() == "copy"


def test_without_scripts_it_is_whole_and_reloads(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(PATIENT * 1000)
    page.goto(address)
    assert page.locator("tbody .badge").count() >= 6
    assert page.locator("noscript meta[http-equiv=refresh]").get_attribute("content") == "30"
    assert page.locator(".cmd button").count() == 0
    context.close()
