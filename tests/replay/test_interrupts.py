"""Ctrl-C and SIGTERM as real signals, names that mislead, and messages that do not stay."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backlogctl.config import load_config
from backlogctl.manifests import SCHEMA_VERSION, Manifest, write_manifest
from backlogctl.replay.engine import interrupts as room
from backlogctl.replay.engine.archives import REMOVED, clear_staging
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.web.exporter import open_exporter
from backlogctl.values import RecoveryState, hash_value
from backlogctl_delivery.visible import escape_name
from tests.conftest import MakeTopic
from tests.kit.kafka import expire_unread, join, set_offsets_raw, wait_until
from tests.kit.processes import ROOT
from tests.kit.recoveries import (
    change_ledger,
    find_detail,
    open_desk,
    read_actions,
    store_approved,
    store_plan,
    write_config,
)
from tests.kit.shop import call_main

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", NUMBERS)
def test_work_is_interrupted_at_once(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert interrupts.asked


@pytest.mark.parametrize("number", NUMBERS)
def test_deferred_work_notes_the_first_and_ends_with_the_second(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with interrupts.installed():
        with interrupts.deferred():
            os.kill(os.getpid(), number)
            assert interrupts.asked
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("slow", [False, True])
def test_what_python_cannot_raise_comes_again(
    number: signal.Signals,
    slow: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the callback of an import, where it would only be printed."""
    ended = []

    class Finalized:
        def __del__(self) -> None:
            try:
                os.kill(os.getpid(), number)
                time.sleep(0)  # the handler runs here
            finally:
                ended.append("the finalizer")

    def start_slowly(timer: threading.Timer) -> None:
        """It is due before the hook that starts it has ended."""
        threading.Thread.start(timer)
        end = time.monotonic() + 3 * room._AGAIN
        while time.monotonic() < end:
            time.sleep(0.01)

    def work() -> None:
        Finalized()
        time.sleep(30)
        ended.append("the work")

    if slow:
        monkeypatch.setattr(threading.Timer, "start", start_slowly)
    interrupts = Interrupts()
    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        work()
    assert (interrupts.asked, ended) == (True, ["the finalizer"])
    assert capsys.readouterr().err == ""


def test_what_comes_again_at_the_very_end_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due when the work has ended: nothing comes after the handlers were given back."""
    is_due = threading.Event()

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # the handler runs here

    def work() -> None:
        Finalized()
        assert is_due.wait(30)

    def come_late(interrupts: Interrupts) -> None:
        is_due.set()
        time.sleep(3 * room._AGAIN)
        come_again(interrupts)

    come_again = Interrupts._come_again
    monkeypatch.setattr(Interrupts, "_come_again", come_late)
    theirs: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: theirs.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), Interrupts().installed():
            work()
        time.sleep(5 * room._AGAIN)
    finally:
        signal.signal(signal.SIGINT, before)
    assert theirs == []


def test_where_one_is_enough_a_second_does_not_disturb_the_cleaning_up() -> None:
    """A first one that Python could not raise is not one."""

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)  # the handler runs here, and what it raises is lost

    cleaned: list[str] = []

    def work() -> None:
        try:
            Finalized()
            time.sleep(30)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(2 * room._AGAIN)
            cleaned.append("up")

    with pytest.raises(KeyboardInterrupt), Interrupts(once=True).installed():
        work()
    assert cleaned == ["up"]


def test_other_errors_that_python_cannot_raise_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finalized:
        def __del__(self) -> None:
            raise ValueError

    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: lost.append(args.exc_type))
    with Interrupts().installed():
        Finalized()
    assert lost == [ValueError]


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with Interrupts().installed():
        assert [signal.getsignal(number) for number in NUMBERS] != before
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_outside_of_the_main_thread_nothing_is_touched() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    seen: list[object] = []

    def work() -> None:
        with Interrupts().installed():
            seen.extend(signal.getsignal(number) for number in NUMBERS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == before


def test_an_interrupt_in_the_middle_of_a_class_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("""
import sys
from backlogctl.replay import cli

def app(*_, **__):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 4

cli.app = app
sys.exit(cli.main([]))
""")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    words = [sys.executable, "-m", "interrupted"]
    assert (
        subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=False).returncode == 4
    )


# A colour, a line of its own, a direction, markup of rich, of HTML and of a label, and a command.
EVIL = (
    "\x1b[31mok\x1b[0m\nnext: rm -rf ~\r\u202egpj.\u2066 \x9b2J[red]x[/red]\\n"
    "\"} 1 <script>alert('1')</script> $(touch pwned); `touch pwned`"
)
MEMBER = "\x1b]0;owned\x07\nerror: all is lost [bold]now[/bold]\u202e<b>"
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


@pytest.fixture
def place(
    properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path
) -> Iterator[tuple[str, str]]:
    """A stream that lost messages, with a member; and the same group's name without a stream."""
    evil, other = f"{group}{EVIL}", f"other-{group}{EVIL}"
    name = topic(partitions=1, config={"retention.ms": "-1"})
    expire_unread(properties, name, evil, old={0: 4}, read={0: 2}, young={0: 6})
    set_offsets_raw(properties, other, name, {0: 5})
    stream = {"cluster": "main", "topic": name, "group": evil, "consumers": {"launcher": "manual"}}
    write_config(
        tmp_path,
        clusters={"main": properties},
        streams={"orders": stream},
        watch={"interval": "1s", "groups": {"allow": ["*"]}},
    )
    say(tmp_path, "gaps")  # while nobody is in the group the loss is certain
    consumer = join(properties, evil, name, client_id=MEMBER)
    try:
        yield evil, other
    finally:
        consumer.close()


def say(directory: Path, *words: str) -> str:
    """What a call says on both outputs; nothing of it acts on a terminal or begins a line."""
    _, out, err = call_main(words, directory, {})
    said = out + err
    assert not CONTROLS.search(said), repr(said)
    assert not re.search(r"^(next: rm|error: all)", said, re.MULTILINE), said
    return said


def test_no_name_acts_on_the_terminal(place: tuple[str, str], tmp_path: Path) -> None:
    evil, other = place
    shown = re.sub(r"\s", "", evil.replace("\n", r"\n").replace("\r", r"\r"))
    shown = CONTROLS.sub(lambda found: escape_name(found[0]), shown)

    def assert_shown(said: str) -> None:
        assert shown in re.sub(r"\s", "", said), said

    assert_shown(say(tmp_path, "status"))
    said = say(tmp_path, "status", "orders")
    assert_shown(said)
    assert "[bold]now[/bold]" in said
    assert_shown(say(tmp_path, "gaps"))
    assert "error: " in say(tmp_path, "plan", "rebuild", "orders")
    assert "error: " in say(tmp_path, "plan", "expand", "orders", "--rate", "100")
    say(tmp_path, "consumers", "status", "orders")
    bootstrap = load_config(tmp_path / "backlog.yaml").clusters["main"].client_properties()
    servers = str(bootstrap["bootstrap.servers"])
    assert "read by other" in say(tmp_path, "status", "--bootstrap", servers, "--group", other)
    missing = say(tmp_path, "status", "--bootstrap", servers, "--group", f"no {other}")
    assert "the group has committed on no topic" in missing


def test_json_holds_the_names_as_they_are(place: tuple[str, str], tmp_path: Path) -> None:
    code, out, _ = call_main(("status", "orders", "--json"), tmp_path, {})
    assert code == 0
    (stream,) = json.loads(out)["streams"]
    assert stream["group"] == place[0]
    assert [one["client_id"] for one in stream["members"]["members"]] == [MEMBER]


def test_a_printed_command_is_one_of_the_names(place: tuple[str, str], tmp_path: Path) -> None:
    lines = say(tmp_path, "acl", "see", "orders", "--principal", "User:o'brien; x").splitlines()
    (line,) = [line for line in lines if " --group " in line]
    script = f'kafka-acls.sh() {{ printf "%s\\0" "$@"; }}; {line}'
    words = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, check=True
    ).stdout.decode()
    given = words.split("\0")
    assert given[given.index("--group") + 1] == place[0]
    assert given[given.index("--allow-principal") + 1] == "User:o'brien; x"
    assert not (tmp_path / "pwned").exists()
    assert shlex.split(lines[0])[0] == "kafka-acls.sh"


def test_metrics_and_page_show_the_names_escaped(place: tuple[str, str], tmp_path: Path) -> None:
    workspace = open_workspace(load_config(tmp_path / "backlog.yaml"))
    call_main(("status",), tmp_path, {})  # samples, and records the gap
    with open_exporter(workspace, "127.0.0.1:0", "--listen", lambda *_: None) as exporter:

        def find_groups() -> set[str]:
            text = httpx.get(f"{exporter.url}/metrics", timeout=60).text
            assert not CONTROLS.search(text)
            return {
                sample.labels["group"]
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if "group" in sample.labels
            }

        wanted = {escape_name(name) for name in place}
        wait_until(lambda: wanted <= find_groups(), what="both groups are exported")
        for path in ("/", "/streams/orders"):
            page = httpx.get(exporter.url + path, timeout=60).text
            assert not CONTROLS.search(page)
            assert "<script>alert" not in page
            assert "&lt;script&gt;alert" in page
            assert r"\x1b[31mok\x1b[0m\nnext: rm -rf" in html.unescape(page)


S = RecoveryState
WAYS = {
    S.VERIFIED: (S.RUNNING, S.VERIFIED),
    S.CANCELLED: (S.RUNNING, S.CANCELLED),
    S.PAUSED: (S.RUNNING, S.PAUSED),
    S.FAILED: (S.RUNNING, S.FAILED),
    S.APPROVED: (),
}


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path, staging={"dir": "./staging", "keep": "30d"})


STAGED = Manifest("r-1", "orders", (), {})
SHA256 = hash_value({"version": SCHEMA_VERSION, **asdict(STAGED)})


def stage(desk: Workspace, recovery_id: str) -> Path:
    directory = desk.staging_of(recovery_id)
    for name in ("messages", "ids"):
        path = directory / name / "slot=00000" / "chunk=000000.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"12345678")
    write_manifest(directory, STAGED)
    return directory


def age(desk: Workspace, days: int) -> None:
    """As if everything in the record had happened so long ago."""
    change_ledger(desk, "DROP TRIGGER IF EXISTS backlog_events_no_update")
    change_ledger(
        desk,
        "UPDATE backlog_events SET at = strftime('%Y-%m-%dT%H:%M:%f', 'now', :ago) || '000Z'",
        ago=f"-{days} days",
    )


@pytest.mark.parametrize("state", WAYS)
def test_only_what_came_to_its_end_loses_its_messages(
    desk: Workspace, state: RecoveryState
) -> None:
    recovery = store_approved(desk, manifest_sha256=SHA256).id
    for step in WAYS[state]:
        desk.ledger.recoveries.advance(recovery, step, "op")
    directory = stage(desk, recovery)
    age(desk, 29)
    assert clear_staging(desk) == ()
    age(desk, 31)
    ended = state in (S.VERIFIED, S.CANCELLED)
    assert clear_staging(desk) == ((recovery,) if ended else ())
    assert (directory / "messages").exists() is not ended
    assert (directory / "manifest.json").exists()
    assert list(directory.glob("ids/*/*.parquet")), "the evidence stays"
    if ended:
        told = find_detail(desk, recovery, REMOVED)
        assert (told["files"], told["bytes"], told["keep_days"]) == (1, 8, 30)
        assert clear_staging(desk) == (), "once"
        assert read_actions(desk, recovery).count(REMOVED) == 1


def test_superseded_and_rejected_plans_lose_theirs(desk: Workspace) -> None:
    old = store_plan(desk, manifest_sha256=SHA256).id
    new = store_plan(desk, manifest_sha256=SHA256).id
    desk.ledger.recoveries.advance(new, S.REJECTED, "op")
    assert desk.ledger.recoveries.get(old).state is S.REJECTED
    for recovery in (old, new):
        stage(desk, recovery)
    age(desk, 31)
    assert clear_staging(desk) == (old, new)


def test_what_cannot_be_removed_fails_nothing(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = store_plan(desk, manifest_sha256=SHA256).id
    desk.ledger.recoveries.advance(recovery, S.REJECTED, "op")
    stage(desk, recovery)
    age(desk, 31)

    def refuse(_: Path) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("backlogctl.replay.engine.archives.shutil.rmtree", refuse)
    assert clear_staging(desk) == ()
    assert "not yours" in caplog.text
    assert REMOVED not in read_actions(desk, recovery)
