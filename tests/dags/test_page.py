"""The page inside a real API server of Airflow; the form and the page by clicks."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from backlogctl.config import Config, load_config
from backlogctl.dags.page.cache import KEEP, KEEP_ERROR, PageCache
from backlogctl.dags.plugin import MOST_AT_ONCE, LazyPage
from backlogctl.errors import BacklogError, ConfigurationError
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_page
from backlogctl.values import Recovery, RecoveryState
from tests.dags.airflow import Airflow
from tests.dags.api_server import ASKED, NOTE, NOTED
from tests.dags.browsing import RECOVER, Visit, open_browser
from tests.dags.slots import Slots
from tests.dags.test_approvals import Asked
from tests.kit.processes import ROOT
from tests.kit.recoveries import (
    keep_plan,
    make_rebuild_plan,
    note,
    open_desk,
    store_expand_plan,
    write_config,
)

# What the page in Airflow keeps open, how many it serves at once, and the links of tasks.

pytestmark = pytest.mark.airflow


def test_a_few_requests_at_once_so_that_airflow_keeps_its_threads() -> None:
    page = LazyPage()
    now = most = 0

    async def answer(*_: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    async def receive() -> Any: ...

    async def ask() -> None:
        page._app = answer
        await asyncio.gather(*(page({}, receive, answer) for _ in range(50)))

    asyncio.run(ask())
    assert most == MOST_AT_ONCE


class Loader:
    """A configuration that is counted, and fails when told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: Exception | None = None
        self.loaded = 0

    def __call__(self) -> Config:
        self.loaded += 1
        if self.error is not None:
            raise self.error
        return load_config(self.path)


def test_what_was_opened_is_kept_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path)
    monkeypatch.setenv("BACKLOG_CONFIG", str(path))
    loader, now = Loader(path), 0.0
    cache = PageCache(loader, lambda: now)
    first = cache.open()
    assert cache.open() is first
    assert loader.loaded == 1
    now += KEEP
    assert cache.open() is first
    assert loader.loaded == 2
    write_config(tmp_path, watch={"interval": "11s"})
    second = cache.open()
    assert second is not first
    assert second.workspace.config.watch.interval.total_seconds() == 11

    loader.error = ConfigurationError("no connection", subject="shop")
    now += KEEP
    for _ in range(3):
        with pytest.raises(BacklogError, match="no connection"):
            cache.open()
    assert loader.loaded == 4
    loader.error = None
    now += KEEP_ERROR
    assert cache.open() is second

    loader.error = RuntimeError("a fault")
    now += KEEP
    for _ in range(2):
        with pytest.raises(RuntimeError):
            cache.open()
    loader.error = None
    assert cache.open() is second
    second.workspace.ledger.close()


def make_environment(home: Path, **settings: str) -> dict[str, str]:
    """Of an Airflow in that folder, beside the configuration."""
    return {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        "BACKLOG_CONFIG": str(home / "backlog.yaml"),
        "PYTHONPATH": str(ROOT),
    }


def test_tasks_link_to_their_recovery_and_the_plugin_is_light(tmp_path: Path) -> None:
    write_config(tmp_path)
    told = subprocess.run(
        [sys.executable, "-m", "tests.dags.linked"],
        env=make_environment(tmp_path, API__BASE_URL="https://ops.example/airflow/"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert found["heavy"] == []
    for task in ("recover_backlog.rebuild.approve", "nightly_backfill.stream.put_back"):
        assert set(found["links"][task]) == {"Recovery", "Report"}
    assert len(found["links"]["nightly_backfill.stream.ask"]) == 3
    page = "https://ops.example/airflow/plugin/backlogctl/airflow/backlogctl"
    assert found["addresses"] == [
        [
            f"{page}/recoveries/r-20261121-0007",
            "https://ops.example/airflow/backlogctl/reports/r-20261121-0007",
        ],
        ["page", "report"],
        [f"{page}/runs/recover_backlog/manual__2026%2B00%3A00%2F1", ""],
    ]


SECRET = "hunter2-of-a-connection"
ONE = ASKED
TWO = "manual__2026-11-21T11:00:00+00:00"
USERS = {"admin": "admin", "viewer": "viewer", "tokyo": "user", "stranger": "op"}
SHOP = {"shop": {"url": "postgresql+psycopg://shop:${airflow:shop.password}@db/shop"}}


@dataclass
class Site:
    """A served Airflow, and the ledger that its page reads."""

    address: str
    home: Path
    desk: Workspace
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, user: str | None = "viewer", **options: Any) -> httpx.Response:
        headers = options.pop("headers", {})
        if user is not None:
            headers = {"Authorization": f"Bearer {self.log_in(user)}", **headers}
        method = options.pop("method", "GET")
        return httpx.request(method, self.address + path, headers=headers, timeout=90, **options)

    def read(self, path: str, user: str = "viewer", status: int = 200) -> str:
        answer = self.ask(path, user)
        assert answer.status_code == status, answer.text
        return answer.text

    def log_in(self, user: str) -> str:
        if user not in self.tokens:
            body = {"username": user, "password": user}
            answer = httpx.post(f"{self.address}/auth/token", json=body, timeout=90)
            self.tokens[user] = answer.json()["access_token"]
        return self.tokens[user]


@dataclass(frozen=True)
class Kept:
    """Recoveries in the ledger, by what planned them."""

    shell: Recovery
    one: Recovery
    two: tuple[Recovery, Recovery]
    tokyo: Recovery
    green: Recovery


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("airflow")
    desk = open_desk(home)
    (home / "passwords.json").write_text(json.dumps({user: user for user in USERS}))
    environment = make_environment(
        home,
        API__HOST="127.0.0.1",
        API_AUTH__JWT_SECRET="of-tests-only-" * 5,
        CORE__AUTH_MANAGER="tests.dags.api_server.NamedRights",
        CORE__SIMPLE_AUTH_MANAGER_USERS=",".join(f"{n}:{r}" for n, r in USERS.items()),
        CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(home / "passwords.json"),
    )
    log = home / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.dags.api_server"],
            env={**environment, "AIRFLOW_API_APPS": "core"},
            cwd=home,
            stdout=out,
            stderr=out,
        )
    try:
        yield Site(f"http://127.0.0.1:{_await_port(server, log)}", home, desk)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        desk.ledger.close()


def _await_port(server: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + 200
    while time.monotonic() < end and server.poll() is None:
        if found := re.search(r"^port (\d+)\n", log.read_text(), re.MULTILINE):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture(scope="module")
def kept(site: Site) -> Kept:
    def store(stream: str, dag_id: str, run_id: str, deployment: str = "") -> Recovery:
        origin = name_origin(dag_id, run_id, deployment=deployment)
        return keep_plan(site.desk, make_rebuild_plan(stream=stream, topic=stream, origin=origin))

    expand = store_expand_plan(site.desk, origin=name_origin("recover_backlog", TWO))
    # Of a run by the same id in another Airflow (fault 138).
    green = store("refunds", "recover_backlog", ONE, "green")
    return Kept(
        green=green,
        shell=store_expand_plan(site.desk, origin=None),
        one=store("clicks", "recover_backlog", ONE),
        two=(expand, store("emails", "recover_backlog", TWO)),
        tokyo=store("invoices", "nights_in_tokyo", ONE),
    )


def list_pages(kept: Kept) -> list[str]:
    return [
        "/backlogctl/",
        "/backlogctl/streams/orders",
        f"/backlogctl/recoveries/{kept.one.id}",
        f"/backlogctl/reports/{kept.one.id}",
        f"/backlogctl/runs/recover_backlog/{quote(ONE)}",
        "/backlogctl/static/page.css",
        "/backlogctl/static/page.js",
        "/backlogctl/nothing/here",
    ]


def test_airflow_lists_the_page_and_the_tab(site: Site) -> None:
    answer = site.ask("/api/v2/plugins").json()
    [plugin] = [one for one in answer["plugins"] if one["name"] == "backlogctl"]
    views = {view["name"]: view for view in plugin["external_views"]}
    assert {name: (view["destination"], view["href"]) for name, view in views.items()} == {
        "Backlogs": ("nav", "backlogctl/"),
        "Recovery": ("dag_run", "backlogctl/runs/{DAG_ID}/{RUN_ID}"),
        "Report": ("dag_run", "backlogctl/run-reports/{DAG_ID}/{RUN_ID}"),
    }
    assert len({view["url_route"] for view in views.values()}) == 3
    assert site.ask("/api/v2/plugins/importErrors").json()["total_entries"] == 0


def test_nothing_is_shown_without_a_login(site: Site, kept: Kept) -> None:
    for path in list_pages(kept):
        for token in (None, "no-token"):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            for method in ("GET", "HEAD"):
                answer = site.ask(path, None, headers=headers, method=method)
                assert answer.status_code == 401, path
            answer = site.ask(path, None, headers=headers)
            assert "not logged in" in answer.text
            assert "/api/v2/auth/login?next=%2Fbacklogctl%2F" in answer.text
            assert not re.search(r"orders|clicks|r-20", answer.text.replace(quote(path, ""), ""))


def test_a_browser_is_led_to_the_login_and_back(site: Site) -> None:
    there = "/backlogctl/streams/orders?a=b"
    answer = site.ask(there, None, headers={"Sec-Fetch-Dest": "document"})
    assert answer.status_code == 307
    assert answer.headers["location"] == f"/api/v2/auth/login?next={quote(there, '')}"
    login = site.ask(answer.headers["location"], None)
    assert (login.status_code, quote(there, "") in login.headers["location"]) == (307, True)


def test_a_viewer_sees_the_page(site: Site, kept: Kept) -> None:
    page = site.read("/backlogctl/")
    assert 'href="./streams/orders"' in page
    assert kept.one.id in page
    assert 'href="../static/page.css"' in site.read("/backlogctl/streams/orders")
    recovery = site.read(f"/backlogctl/recoveries/{kept.one.id}")
    assert f'href="../reports/{kept.one.id}"' in recovery
    assert f"backlogctl approve {kept.one.id}" not in recovery
    where = "answer it in Airflow</a>"
    run = f"dags/recover_backlog/runs/{quote(ONE, safe='')}"
    answer = f'/{run}/tasks/rebuild.approve/required_actions" target="_top">{where}'
    assert answer in recovery
    assert answer in page
    for one in (kept.one, kept.shell, kept.green, kept.two[1]):  # the last one's run asks nothing
        assert (f"backlogctl approve {one.id} --by NAME" in page) is (one is not kept.one)
    assert where not in site.read(f"/backlogctl/recoveries/{kept.shell.id}")
    green = site.read(f"/backlogctl/recoveries/{kept.green.id}")
    assert f"run {ONE} of recover_backlog, Airflow green" in green
    assert where not in green
    assert ".badge" in site.read("/backlogctl/static/page.css")
    assert "There is no stream nothing" in site.read("/backlogctl/streams/nothing", status=404)
    cookies = {"_token": site.log_in("viewer")}
    assert site.ask("/backlogctl/", None, cookies=cookies).status_code == 200


def test_only_airflow_itself_may_frame_it(site: Site, kept: Kept) -> None:
    for path in list_pages(kept):
        for user in ("viewer", "stranger", None):
            headers = site.ask(path, user).headers
            policy = headers["content-security-policy"].split("; ")
            assert "frame-ancestors 'self'" in policy
            assert "default-src 'none'" in policy
            assert headers["cache-control"] == "no-store"


def test_nothing_can_be_changed(site: Site) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = site.ask("/backlogctl/recoveries/r-1", "admin", method=method)
        assert answer.status_code == 405
        assert "only looked at" in answer.text


def test_who_may_not_read_the_dag_is_refused(site: Site, kept: Kept) -> None:
    for path in list_pages(kept):
        if "static" not in path:
            refused = site.read(path, "stranger", 403)
            assert "the right to read the DAG recover_backlog" in refused
            assert "clicks" not in refused


def test_who_may_read_one_dag_sees_what_its_runs_planned(site: Site, kept: Kept) -> None:
    run = f"/backlogctl/runs/nights_in_tokyo/{quote(ONE)}"
    assert kept.tokyo.id in site.ask(run, "tokyo").headers["location"]
    for kind in ("recoveries", "reports"):
        assert kept.tokyo.id in site.read(f"/backlogctl/{kind}/{kept.tokyo.id}", "tokyo")
        for other in (kept.one.id, kept.shell.id, "r-20261121-9999"):
            site.read(f"/backlogctl/{kind}/{other}", "tokyo", 403)
    for path in ("/backlogctl/", "/backlogctl/streams/invoices"):
        site.read(path, "tokyo", 403)
    site.read(f"/backlogctl/runs/recover_backlog/{quote(ONE)}", "tokyo", 403)


@pytest.mark.parametrize(("tab", "kind"), [("runs", "recoveries"), ("run-reports", "reports")])
def test_the_tabs_of_a_run_show_its_recovery(site: Site, kept: Kept, tab: str, kind: str) -> None:
    base = f"/backlogctl/{tab}/recover_backlog/"
    found = site.ask(base + quote(ONE, safe=""), follow_redirects=True)
    assert (found.status_code, found.url.path) == (200, f"/backlogctl/{kind}/{kept.one.id}")
    choice = site.read(base + quote(TWO, safe=""))
    for one in kept.two:
        assert f'href="../../{kind}/{one.id}"' in choice
    assert kept.one.id not in choice
    assert site.ask(base + quote(ONE, safe=""), "stranger").status_code == 403
    for run in ("scheduled__never", "a%2Fb", "%25", "%3Cscript%3E"):
        nothing = site.read(base + run)
        assert "has planned none yet" in nothing
        assert "<script>" not in nothing
    noted = site.read(base + quote(NOTED, safe=""))
    told = re.sub(r"</?code>", "`", noted.partition("<main>")[2])
    assert f"<p>{html.escape(NOTE)}</p>" in told
    assert "none yet" not in noted
    assert site.ask(base + quote(NOTED, safe=""), "tokyo").status_code == 403


def test_a_report_is_the_one_of_the_command(site: Site, kept: Kept) -> None:
    def cut(text: str) -> str:
        """Without moments and durations."""
        return re.sub(
            r"(\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d"
            r"|(under )?\d+ (d|h|min|m?s)\b( \d+ (h|min|s)\b)?",
            "",
            text,
        )

    shown = site.read(f"/backlogctl/reports/{kept.one.id}")
    assert cut(shown) == cut(render_page(make_report(site.desk, kept.one.id)))
    missing = site.read("/backlogctl/reports/r-20261121-9999", status=404)
    assert "There is no such recovery" in missing


def test_a_wrong_configuration_is_told_and_airflow_goes_on(site: Site, kept: Kept) -> None:
    path = write_config(site.home, streams={"orders": {"topik": "orders"}})
    try:
        told = site.read("/backlogctl/", status=503)
        assert "The configuration is wrong" in told
        assert "topik" in told
        site.read("/backlogctl/", "stranger", 403)
        assert ".badge" in site.read("/backlogctl/static/page.css")
        assert site.ask("/api/v2/plugins").status_code == 200
        path.unlink()
        assert "there is no such file" in site.read("/backlogctl/", status=503)
    finally:
        write_config(site.home)
    assert kept.one.id in site.read("/backlogctl/")
    assert "topik" in (site.home / "server.log").read_text()


def test_a_connection_holds_the_secret_and_nobody_sees_it(site: Site, kept: Kept) -> None:
    write_config(site.home, sources=SHOP)
    try:
        assert "no connection shop" in site.read("/backlogctl/", status=503)
        connection = {"connection_id": "shop", "conn_type": "postgres", "password": SECRET}
        made = site.ask("/api/v2/connections", "admin", method="POST", json=connection)
        assert made.status_code == 201, made.text
        write_config(site.home, sources=SHOP)
        note(site.desk, kept.one.id, "said", message=f"tried {SECRET}")
        for kind in ("recoveries", "reports"):
            page = site.read(f"/backlogctl/{kind}/{kept.one.id}")
            assert "tried ***" in page
            assert SECRET not in page
    finally:
        write_config(site.home)
    assert SECRET not in (site.home / "server.log").read_text()


@pytest.mark.browser
def test_a_person_triggers_looks_and_answers(airflow: Airflow, slots: Slots) -> None:
    """Five clicks: opening, two choices, a section, sending; the first choice of both needs two."""
    asked = Asked.take(slots)
    standalone = airflow.standalone
    with open_browser() as browser:
        visit = Visit(browser, standalone.address)
        visit.log_in("oncall", standalone.password_of("oncall"))
        visit.open_form()
        visit.choose("stream", asked.stream)
        visit.choose("action", "rebuild")
        visit.fill_existing("Approval and record", "recovery", asked.first)
        run_id = visit.trigger()
        assert visit.clicks == 5

        run = airflow.list_runs(RECOVER)[-1]
        airflow.await_question(run, "rebuild.approve")
        visit.open_question(run_id, "rebuild.approve")
        # The buttons may be there before the text is.
        visit.page.get_by_text("All figures and ranges").first.wait_for()
        assert visit.sees_buttons()
        told = visit.page.locator("body").inner_text()
        assert asked.first in told
        assert asked.read().plan_hash[:12] in told

        page = visit.open_backlogs()
        page.get_by_text(asked.stream).first.wait_for()
        page.get_by_role("link", name=asked.first).first.click()
        page.get_by_text("planned by").wait_for()

        visit.open_question(run_id, "rebuild.approve")
        airflow.await_parked(run, "rebuild.approve")
        visit.answer("Reject")
        airflow.await_run(run, {"success"})
        assert asked.read().state is RecoveryState.REJECTED
        assert asked.read().detail["by"] == "oncall"
