"""Groups and members on a real broker whose names are meant to mislead who looks at them."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backlogctl.config import load_config
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.web.exporter import open_exporter
from backlogctl_delivery.visible import escape_name
from tests.conftest import MakeTopic
from tests.kafka_tools import expire_unread, join, set_offsets_raw, wait_until
from tests.replay.calling import call_main
from tests.replay.makers import write_config

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
