"""Every page and every state, over a ledger filled by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from backlogctl.kafka.transactions import OpenTransaction, TransactionFate
from backlogctl.ledger.measurements import AuditRecord
from backlogctl.monitoring.groups.survey import describe_cluster
from backlogctl.monitoring.verdict.status import HeldBack, Verdict
from backlogctl.monitoring.watch.board import Board, ClusterPass, TopicPartitionState
from backlogctl.replay.web.page.app import HEADERS, make_page
from backlogctl.values import Cause, Certainty, RecoveryState
from tests.kit.recoveries import make_expand_plan, make_rebuild_plan
from tests.replay.web.page.night import (
    DAY,
    NOW,
    SECRET,
    STREAMS,
    Night,
    make_group,
    make_stream,
)
from tests.replay.web.page.story import tell_night
from tests.replay.web.page.visits import read, serve, strip

EVIL = "<script>alert(1)</script>"
LIMIT = 150_000
WATCHING = Path(__file__).parents[4] / "docs/watching.md"


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """The whole story; tests only read it."""
    told = tell_night(tmp_path_factory.mktemp("night"), lean=True)
    yield told
    told.ledger.close()


def find_recovery(night: Night, stream: str) -> str:
    (found,) = night.ledger.recoveries.list(stream)
    return found.id


def test_streams_stand_worst_first_with_what_to_do(night: Night) -> None:
    page = read(night, "/")
    order = re.findall(r'<a href="\./streams/(\w+)">', page)
    assert order[:3] == ["payments", "orders", "emails"]
    words = strip(page)
    assert "backlogctl plan rebuild payments" in words
    assert "backlogctl hold orders --for 24h" in words
    running = find_recovery(night, "shipments")
    assert f"backlogctl show {running} --watch" in words, "a live runner is watched, not run again"
    assert "retention reaches it" in words
    assert "reporting" in words
    assert "mirror" not in words, "a group that is ok is not in the way"


def test_every_page_is_light_and_keeps_its_secrets(night: Night) -> None:
    client = serve(night)
    paths = ["/", "/static/page.css", "/static/page.js"]
    paths += [f"/streams/{name}" for name in STREAMS]
    paths += [f"/recoveries/{one.id}" for one in night.ledger.recoveries.list()]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, path
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert SECRET not in answer.text
        bare = re.sub(r"<svg.*?</svg>", "", answer.text, flags=re.DOTALL)
        assert len(bare.encode()) < LIMIT
        assert not re.search(r'(src|href)="(https?:)?//', bare), "nothing comes from elsewhere"
        assert "<script>" not in bare, "no script stands in a page"


def test_a_stream_shows_its_past_its_offsets_and_its_gaps(night: Night) -> None:
    page = read(night, "/streams/payments")
    assert page.count("<svg") == 3
    assert "retention" in page[page.index("<svg") :]
    assert page.count('class="bar') == 6
    for kind in ("gone", "lost", "read", "unread"):
        assert f"seg {kind}" in page
    words = strip(page)
    assert re.search(r"g-\d{8}-0001", words)
    assert "expired, exact" in words
    assert "backlogctl gaps payments" in words


def test_a_stream_shows_who_is_in_its_group_and_what_the_doctor_found(night: Night) -> None:
    words = strip(read(night, "/streams/orders"))
    assert "orders-1 /10.0.4.17 0, 1, 2, 3" in words
    assert "none in the window" in words, "of a member that has partitions and does not commit"
    assert "min.insync.replicas 1 with 3 replicas" in words
    assert "--add-config min.insync.replicas=2" in words
    assert words.index("loses topic orders") < words.index("stops stream orders")
    assert "Nobody is in the group." in strip(read(night, "/streams/emails"))
    told = "lost sequence 37 messages lost 5 h ago lost 37 messages (sequence 4,120 to 4,156)"
    assert told in words
    assert "2,480 rows have no message in the topic" in words
    assert "nothing to see" not in words
    clicks = strip(read(night, "/streams/clicks"))
    assert "None yet: backlogctl audit producers clicks" in clicks
    assert "Nothing found that loses messages" in clicks
    assert "Members" not in clicks
    assert "Not looked at yet: backlogctl doctor payments" in strip(
        read(night, "/streams/payments")
    )
    front = strip(read(night, "/"))
    assert "2 findings of the doctor lose messages or stop a recovery" in front
    assert "its clock is 12 s ahead of this host" in front


def test_what_of_an_audit_is_not_shown_is_counted(quiet: Night) -> None:
    """Seven holes, and how much is lost in all."""
    hole = {"level": "lost", "found": "3 messages never reached the topic", "commands": []}
    findings = [hole] * 7 + [{"level": "noted", "found": "no loss", "commands": []}]
    quiet.ledger.audits.record(
        AuditRecord("orders", "main", "sequence", NOW, "lost", 21, {"findings": findings})
    )
    quiet.sample("orders", lambda *_: (0, 500, 1000), 1, times=[NOW - DAY, NOW])
    quiet.look("orders")
    quiet.at()
    words = strip(read(quiet, "/streams/orders"))
    assert "lost sequence 21 messages lost" in words
    assert words.count("3 messages never reached the topic") == 5
    assert "and 2 more findings" in words


def test_many_partitions_are_compact_and_the_rest_is_counted(quiet: Night) -> None:
    quiet.lean = True

    def offsets(_: object, number: int) -> tuple[int, int | None, int]:
        return (0, None, 0) if number == 7 else (0, 500 + number, 1000)

    quiet.sample("orders", offsets, 250, times=[NOW - DAY, NOW])
    quiet.look("orders")
    quiet.at()
    page = read(quiet, "/streams/orders")
    assert 'class="maps compact"' in page
    assert page.count('class="bar') == 200
    assert "nothing written yet" in page
    assert "50 partitions that are not shown" in strip(page)
    assert len(re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)) < LIMIT


def test_a_finished_rebuild_tells_its_plan_its_proof_and_its_record(night: Night) -> None:
    page = read(night, f"/recoveries/{find_recovery(night, 'invoices')}")
    words = strip(page)
    assert "100 % put back: 7,266 of 7,266" in words
    assert "read back once, as staged, in their partition 7,266" in words
    assert "Grace (os:grace@ops-2)" in words
    assert "100 % of 2,330 survivors rebuilt as they are" in words
    assert "check target done" in words
    assert "check target completed 2 s" in words
    assert "− 2,330 still in the topic" in words
    assert "560,000–561,799" in words, "the lost ranges"
    brakes = "00:30–06:00 UTC, as many nights as needed, at most 100 messages/s"
    assert f"{brakes}: about 1 min 13 s of work" in words
    assert "The record was changed" not in words
    assert page.count("<svg") == 4, "messages and their rate, each for a wide page and a narrow one"


def test_a_running_expansion_tells_how_far_it_is(night: Night) -> None:
    page = read(night, f"/recoveries/{find_recovery(night, 'shipments')}")
    words = strip(page)
    assert "16 % handled" in words
    assert re.search(r"done in about \d+ min", words)
    assert "drain running" in words
    assert "gives back" in words
    assert "drained in 18 h 53 min, by 6 consumers" in words
    assert "topic shipments.recovery.r-20261121-0001, read by" in words
    assert words.count("other groups") == 1
    assert "consumers in normal times" not in words, "the facts say it"
    assert "hold retention completed 1 s" in words
    assert "drain started" in words
    assert '<progress max="100" value="16">' in page


@pytest.mark.parametrize("kind", ["rebuild", "expand"])
@pytest.mark.parametrize("state", ["planned", "rejected", "cancelled", "failed", "paused"])
def test_other_states_say_why_and_what_comes_next(quiet: Night, kind: str, state: str) -> None:
    recovery = quiet.plan(make_rebuild_plan() if kind == "rebuild" else make_expand_plan())
    to = RecoveryState(state)
    told = {"by": "Grace", "reason": f"too late, {EVIL}", "message": f"no way {SECRET}"}
    if state == "rejected":
        quiet.advance(recovery, to, **told)
    elif state != "planned":
        quiet.approve(recovery)
        quiet.advance(recovery, RecoveryState.RUNNING)
        quiet.advance(recovery, to, **told, why="operator")
    page = read(quiet, f"/recoveries/{recovery.id}")
    words = strip(page)
    assert EVIL not in page
    assert SECRET not in page
    if state == "planned":
        assert f"backlogctl approve {recovery.id} --by NAME" in words
        assert "nobody yet" in words
    else:
        assert "no way ***" in words
        assert "too late" in words
    if state in ("failed", "paused"):
        assert re.search(f"backlogctl (run|resume) {recovery.id}", words)
    assert recovery.id in strip(read(quiet, "/"))
    assert recovery.id in strip(read(quiet, "/streams/orders"))


def test_a_run_without_a_runner_is_told(quiet: Night) -> None:
    recovery = quiet.plan(make_rebuild_plan())
    quiet.approve(recovery)
    quiet.advance(recovery, RecoveryState.RUNNING)
    words = strip(read(quiet, f"/recoveries/{recovery.id}"))
    assert "no runner is at it" in words
    assert f"backlogctl run {recovery.id}" in words


def test_hostile_names_are_only_text(quiet: Night) -> None:
    group = make_group(EVIL, f'"><img src=x onerror={EVIL}>', "stall", 5)
    quiet.board.put_cluster(ClusterPass(EVIL, NOW, 0.1, (group,)))
    quiet.board.note_failure("main", "orders", f"{EVIL} {SECRET}")
    quiet.lose("orders", 0, None, None, cause=Cause.COMMIT_VANISHED, reason=EVIL)
    quiet.lose("orders", 1, 5, 9, certainty=Certainty.BOUNDED, reason=SECRET)
    quiet.at()
    for path in ("/", "/streams/orders", f"/streams/{EVIL}", f"/recoveries/{EVIL}"):
        text = serve(quiet).get(path).text
        assert EVIL not in text
        assert "<img" not in text
        assert SECRET not in text
    assert "&lt;script&gt;" in read(quiet, "/")
    assert "unknown" in strip(read(quiet, "/streams/orders"))


def test_what_is_old_or_cannot_be_seen_is_marked(quiet: Night) -> None:
    assert "No sample yet" in read(quiet, "/")
    quiet.lean = True
    quiet.sample("orders", lambda _, n: (0, 10, 10), 1)
    quiet.look("orders")
    quiet.at()
    assert "Stale" not in read(quiet, "/")
    quiet.now = NOW + timedelta(minutes=10)
    assert "Stale: the last sample is of 2026-11-21 06:40:00 UTC" in read(quiet, "/")
    assert "10 min ago" in read(quiet, "/")
    quiet.board.note_failure("main", "orders", "no broker answered")
    quiet.board.note_failure("main", "", "not authorized")
    words = strip(read(quiet, "/"))
    assert "Cannot be seen: no broker answered What is shown is old." in words
    assert "Groups of cluster main cannot be seen: not authorized" in words
    assert "Cannot be seen: no broker answered" in strip(read(quiet, "/streams/orders"))


def test_what_lies_behind_an_open_transaction_is_shown_with_who_left_it(quiet: Night) -> None:
    quiet.lean = True
    quiet.sample("orders", lambda _, n: (0, 10, 10), 2)
    status = quiet.look("orders")
    one = OpenTransaction(
        *("orders", 1, 10, 7, 3),
        transactional_id=EVIL,
        fate=TransactionFate.HANGING,
    )
    since = NOW - timedelta(minutes=9)
    held = HeldBack(10, 490, since, 540.0, transaction=one)
    parts = (status.partitions[0], replace(status.partitions[1], held=held))
    quiet.board.put_stream(replace(status, partitions=parts, held=490))
    page = read(quiet, "/streams/orders")
    assert "seg held" in page
    assert EVIL not in page
    words = strip(page)
    assert "Open transactions" in words
    assert "1 at 10 9 min ago transactional.id" in words
    assert "producer 7, epoch 3 ≤ 490 never by itself" in words
    assert "behind an open transaction" in words


def tell_many(directory: Path) -> Night:
    """500 streams: all are well but five that lost, and one that nobody looked at."""
    names = [f"stream-{number:03}" for number in range(500)]
    night = Night.begin(directory, streams={name: make_stream(name) for name in (*names, "new")})
    night.sample("stream-000", lambda at, _: (0, 50, 50), 2, times=[NOW])
    well = replace(night.look("stream-000"), taken_at=NOW)
    for number, name in enumerate(names):
        lost = number if number % 100 == 3 else 0
        place: dict[str, Any] = {"stream": name, "topic": name, "group": f"{name}-service"}
        verdict = Verdict.LOST if lost else Verdict.OK
        night.board.put_stream(replace(well, **place, verdict=verdict, lost=lost))
    night.at()
    return night


def list_shown(page: str) -> list[str]:
    return re.findall(r'<a href="\./streams/([\w-]+)">', page)


def test_of_many_streams_the_well_are_folded_and_the_others_found(tmp_path: Path) -> None:
    night = tell_many(tmp_path)
    page = read(night, "/")
    troubled, well = page.split('<details id="well"')
    assert list_shown(troubled) == [
        *("stream-003", "stream-103", "stream-203", "stream-303", "stream-403"),
        "new",
    ]
    assert len(list_shown(well)) == 495
    assert "495 streams with nothing to be done" in strip(well)
    assert list_shown(read(night, "/?sort=lost"))[:2] == ["stream-403", "stream-303"]
    assert list_shown(read(night, "/?q=REAM-10")) == [
        "stream-103",
        *(f"stream-{number}" for number in (100, 101, 102, 104, 105, 106, 107, 108, 109)),
    ], "ten fit whole"
    assert len(list_shown(read(night, "/?verdict=lost"))) == 5
    assert "495 of 501 streams" in strip(read(night, "/?verdict=ok"))
    nothing = read(night, "/?q=%3Cscript%3E&verdict=nonsense&sort=nonsense")
    assert "no such stream" in nothing
    assert "<script>" not in nothing
    night.ledger.close()


def test_other_groups_are_bounded_and_counted(quiet: Night) -> None:
    groups = tuple(make_group(f"g{n:03}", "t", "warn", n) for n in range(100))
    states = {"orders": (TopicPartitionState(3, 0, 9, -1, 3, 1),)}
    quiet.board.put_cluster(ClusterPass("main", NOW, 0.1, groups, states, 3, 77))
    words = strip(read(quiet, "/"))
    assert "g099" in words
    assert "g079" not in words
    assert "and 80 more that are not ok" in words
    assert "77 partitions of groups beyond" in words
    assert "1 partition of the topic without a leader" in strip(read(quiet, "/streams/orders"))


def test_groups_that_may_be_hidden_are_said_with_the_next_command(quiet: Night) -> None:
    unseen = describe_cluster("main", False, {})
    quiet.board.put_cluster(ClusterPass("main", NOW, 0.1, (), unseen=unseen))
    words = strip(read(quiet, "/"))
    assert "unknown: which other groups there are" in words
    assert "may not list all groups (DESCRIBE on the cluster is missing)" in words
    assert "backlogctl acl see orders --principal User:NAME" in words


def test_without_a_board_the_ledger_tells(quiet: Night) -> None:
    assert "No sample yet" in read(quiet, "/", board=None)
    quiet.lean = True
    quiet.sample("orders", lambda _, n: (0, 90, 100), 2)
    quiet.at()
    for board in (None, Board()):
        words = strip(read(quiet, "/", board=board))
        assert "20" in words
        assert "No sample yet" not in words
        assert "read by orders-service" in words


def test_a_new_sample_or_gap_is_judged_anew_without_a_board(quiet: Night) -> None:
    client = serve(quiet, board=None)

    def look() -> str:
        quiet.at()
        return strip(client.get("/").text)

    quiet.sample("orders", lambda _, n: (0, 90, 100), 1, times=[NOW - DAY])
    assert "10 behind" in look()
    quiet.sample("orders", lambda _, n: (0, 70, 100), 1, times=[NOW])
    assert "30 behind" in look()
    quiet.lose("orders", 0, 10, 25)
    assert "15 messages lost" in look()


def test_a_hold_is_shown_until_it_is_given_back(quiet: Night) -> None:
    quiet.at()
    hold = quiet.ledger.holds.begin(
        stream="orders",
        cluster="main",
        topic="orders",
        topic_id="id-orders",
        holder="operator",
        old={"retention.ms": "86400000"},
        raised={"retention.ms": "-1"},
        until=NOW + DAY,
        actor="os:ada@ops-1",
    )
    words = strip(read(quiet, "/streams/orders"))
    assert "retention.ms 86400000 → unlimited" in words
    assert "in 1 d" in words
    quiet.ledger.holds.release(hold.id)
    assert "unlimited" not in strip(read(quiet, "/streams/orders"))


def test_no_streams_is_a_beginning(tmp_path: Path) -> None:
    night = Night.begin(tmp_path, streams={})
    words = strip(read(night, "/"))
    assert "No streams yet" in words
    assert "backlogctl init" in words
    night.ledger.close()


def test_what_is_not_there_is_said_helpfully(night: Night) -> None:
    page = read(night, "/streams/payment", 404)
    assert '<a href="../streams/payments">payments</a>' in page
    assert "backlogctl recoveries" in read(night, "/recoveries/r-1", 404)
    page = read(night, "/a/b/c", 404)
    assert 'href="../../static/page.css"' in page


def test_it_only_reads(night: Night) -> None:
    client = serve(night)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = client.request(method, "/streams/orders")
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
        assert answer.headers["content-security-policy"]
    for path in ("/", "/streams/orders", "/static/page.js"):
        answer = client.head(path)
        assert answer.status_code == 200, "an uptime check asks for no more than the head"
        assert answer.headers["content-security-policy"]
    assert client.head("/streams/nope").status_code == 404
    for path in ("/docs", "/redoc", "/openapi.json", "/static/../app.py", "/static/"):
        assert client.get(path).status_code == 404


def test_a_ledger_that_does_not_answer_is_said_and_the_board_still_tells(quiet: Night) -> None:
    quiet.lean = True
    quiet.sample("orders", lambda _, n: (50, 20, 100), 1)
    quiet.look("orders")
    quiet.at()
    quiet.ledger.close()
    for file in Path(quiet.config.ledger_url().removeprefix("sqlite:///")).parent.glob(
        "ledger.db*"
    ):
        file.unlink()
    Path(quiet.config.ledger_url().removeprefix("sqlite:///")).write_bytes(b"no database " * 999)
    words = strip(read(quiet, "/", 503))
    assert "The ledger does not answer" in words
    assert "30 messages were deleted where it reads" in words
    for path in ("/streams/orders", "/recoveries/r-1"):
        page = read(quiet, path, 503)
        assert "not an SQLite database" in page
        assert "Traceback" not in page
        assert 'href="../static/page.css"' in page


@pytest.mark.parametrize("prefix", ["", "/own"])
def test_it_works_under_any_path(night: Night, prefix: str) -> None:
    outer = FastAPI()
    inner = make_page(night.workspace, board=night.board, path=prefix, clock=lambda: NOW)
    outer.mount("/backlog/x", inner)
    client = TestClient(outer)
    seen: set[str] = set()
    todo = [f"http://testserver/backlog/x{prefix}/"]
    while todo:
        address = todo.pop()
        answer = client.get(address)
        assert answer.status_code == 200, address
        seen.add(address)
        if "html" not in answer.headers["content-type"]:
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)"', answer.text):
            found = (
                str(answer.url.join(link)).partition("#")[0] if not link.startswith("data:") else ""
            )
            assert not found or found.startswith(f"http://testserver/backlog/x{prefix}/"), link
            if found and found not in seen and found not in todo:
                todo.append(found)
    pages = {address.partition("?")[0] for address in seen}
    assert len(pages) == 1 + 2 + len(STREAMS) + 2
    missing = client.get(f"/backlog/x{prefix}/streams/nope")
    assert missing.status_code == 404
    assert 'href="../static/page.css"' in missing.text
    lost = client.get(f"/backlog/x{prefix}/a/b")
    assert 'href="../static/page.css"' in lost.text


def test_the_application_in_the_documentation_shows_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", WATCHING.read_text(), re.DOTALL)
    (tmp_path / "backlog.yaml").write_text(
        "ledger: sqlite:///ledger.db\n"
        "clusters: {main: {bootstrap.servers: '127.0.0.1:1'}}\n"
        "streams: {orders: {cluster: main, topic: orders, group: shop}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKLOG_CONFIG", raising=False)
    names: dict[str, Any] = {}
    exec(code, names)
    answer = TestClient(names["app"]).get("/backlog/streams/orders")
    assert answer.status_code == 200
    assert "https://wiki.example" in answer.headers["content-security-policy"]
