"""Names and windows of the streams, for what is shown before anything runs."""

from __future__ import annotations

import json
from datetime import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.config import load_config, render_template
from backlogctl.config.root import Outline, StreamOutline, read_outline

WINDOW = {"from": "22:30", "to": "06:00", "timezone": "Asia/Shanghai"}


def read(directory: Path, streams: Any, env: dict[str, str] | None = None) -> Outline:
    file = directory / "backlog.yaml"
    file.write_text(json.dumps({"streams": streams}))
    return read_outline(file, env or {})


def test_it_agrees_with_what_the_tasks_read(tmp_path: Path) -> None:
    file = tmp_path / "backlog.yaml"
    file.write_text(render_template())
    outline = read_outline(None, {"BACKLOG_CONFIG": str(file)})
    config = load_config(file, {"SHOP_PASSWORD": "s3cr3t-of-shop"})
    assert outline == Outline(
        file,
        tuple(
            StreamOutline(name, stream.source is not None, stream.off_peak)
            for name, stream in config.streams.items()
        ),
    )
    assert outline.streams


def test_no_secret_is_looked_up(tmp_path: Path) -> None:
    file = tmp_path / "backlog.yaml"
    (tmp_path / "password").write_text("hunter2hunter2")
    text = render_template().replace("${env:SHOP_PASSWORD}", "${file:password}")
    file.write_text(text)
    assert "hunter2" not in repr(read_outline(file, {}))
    file.write_text(text.replace("${file:password}", "${airflow:shop.password}"))
    assert read_outline(file, {}).problem == ""


def test_streams_keep_the_files_order(tmp_path: Path) -> None:
    outline = read(tmp_path, {"b": {"source": {}, "off_peak": WINDOW}, "a": {}, "c.d-e_f": {}})
    assert [stream.name for stream in outline.streams] == ["b", "a", "c.d-e_f"]
    first, second = outline.streams[:2]
    assert (first.rebuilds, second.rebuilds, second.off_peak) == (True, False, None)
    assert first.off_peak is not None
    assert (first.off_peak.start, first.off_peak.timezone) == (time(22, 30), "Asia/Shanghai")


def test_a_window_may_come_from_the_environment(tmp_path: Path) -> None:
    window = {**WINDOW, "timezone": "${env:ZONE}"}
    outline = read(tmp_path, {"orders": {"off_peak": window}}, {"ZONE": "Europe/Berlin"})
    assert outline.streams[0].off_peak is not None
    assert outline.streams[0].off_peak.timezone == "Europe/Berlin"
    assert read(tmp_path, {"orders": {"off_peak": window}}).problem.endswith(
        "a stream is not right"
    )


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "orders",
        [],
        {"off_peak": "at night"},
        {"off_peak": []},
        {"off_peak": {}},
        {"off_peak": {**WINDOW, "timezone": "Europe"}},
        {"off_peak": {**WINDOW, "timezone": "Mars/Olympus"}},
        {"off_peak": {**WINDOW, "timezone": "../../etc/passwd"}},
        {"off_peak": {**WINDOW, "timezone": "/etc/passwd"}},
        {"off_peak": {**WINDOW, "timezone": ""}},
        {"off_peak": {**WINDOW, "timezone": 8}},
        {"off_peak": {**WINDOW, "to": "22:30"}},
        {"off_peak": {**WINDOW, "from": "24:00"}},
        {"off_peak": {**WINDOW, "from": 1350}},
        {"off_peak": {**WINDOW, "until": "06:00"}},
        {"off_peak": {"to": "06:00", "timezone": "UTC"}},
    ],
)
def test_a_stream_that_is_not_right_is_told_and_the_others_are_there(
    tmp_path: Path, entry: Any
) -> None:
    outline = read(tmp_path, {"orders": entry, "good": {"off_peak": WINDOW}})
    assert [stream.name for stream in outline.streams] == ["good"]
    assert outline.problem == f"{outline.file}: a stream is not right"


@pytest.mark.parametrize("name", ["a b", "*", "..", "x" * 250, 't"; DROP TABLE x; --', ""])
def test_fault_57_a_name_that_is_none_is_not_shown(tmp_path: Path, name: str) -> None:
    outline = read(tmp_path, {name: {}})
    assert outline.streams == ()
    assert outline.problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"streams: {}", "has no streams"),
        (b"streams: [orders]", "has no streams"),
        (b"ledger: sqlite:///x.db", "has no streams"),
        (b"- a list", "it must be a mapping of sections"),
        (b"{", "not YAML"),
        (b"\xff\xfe", "cannot be read: UnicodeDecodeError"),
    ],
)
def test_a_bad_file_is_a_problem_and_never_an_error(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "backlog.yaml"
    file.write_bytes(content)
    outline = read_outline(file, {})
    assert outline.streams == ()
    assert problem in outline.problem


def test_no_file_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "nowhere.yaml"
    assert read_outline(missing, {}).problem == f"there is no file {missing}"
    assert "cannot be read" in read_outline(tmp_path, {}).problem
    monkeypatch.chdir(tmp_path)
    assert read_outline(None, {}).problem == "there is no file backlog.yaml"
    assert read_outline(None, {"BACKLOG_CONFIG": ""}).file == Path("backlog.yaml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=5), st.fixed_dictionaries({"off_peak": JSON}) | JSON))
def test_whatever_the_file_holds_it_is_an_outline(
    tmp_path_factory: pytest.TempPathFactory, streams: Any
) -> None:
    outline = read(tmp_path_factory.getbasetemp(), streams)
    assert len(outline.streams) == len(streams) or outline.problem
