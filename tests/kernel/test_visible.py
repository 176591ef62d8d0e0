"""Names are shown so that they can be seen, told apart and pasted."""

from __future__ import annotations

import logging
import subprocess
import sys
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from backlogctl.replay.present.layout import Text
from backlogctl_delivery.visible import (
    VisibleFormatter,
    escape_name,
    escape_text,
    join_lines,
    join_words,
    quote_word,
    show_value,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
TRICKY = st.text(st.sampled_from("\\xu1b0\x1b\nn'$"), max_size=8)


def unquote(words: str, locale: str) -> bytes:
    """What bash makes of the words."""
    script = f"printf '%s\\0' {words}"
    done = subprocess.run(
        ["bash", "-c", script], env={"LC_ALL": locale}, capture_output=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("order-service", "order-service"),
        ("日本\u3000語 é", "日本\u3000語 é"),
        (r"DOMAIN\users", r"DOMAIN\users"),
        ("a\x1b[2J", r"a\x1b[2J"),
        (r"a\x1b[2J", r"a\\x1b[2J"),
        ("a\nb\tc\rd\0", r"a\nb\tc\rd\x00"),
        ("\x9b\u202e\u2066\u2028\u200b\ufeff", r"\u009b\u202e\u2066\u2028\u200b\ufeff"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_a_name_as_it_is_shown(name: str, shown: str) -> None:
    assert escape_name(name) == shown


@given(st.lists(NAMES | TRICKY, min_size=2, max_size=2, unique=True))
def test_two_names_never_look_the_same(names: list[str]) -> None:
    assert escape_name(names[0]) != escape_name(names[1])


@settings(max_examples=40, deadline=None)
@given(st.lists((NAMES | TRICKY).filter(lambda name: "\0" not in name), min_size=1, max_size=20))
def test_a_shell_reads_a_printed_command_back(names: list[str]) -> None:
    words = join_words(names)
    assert escape_text(words) == words
    wanted = b"".join(name.encode() + b"\0" for name in names)
    assert unquote(words, "C") == unquote(words, "C.UTF-8") == wanted


def test_what_no_shell_can_pass_names_nothing_else() -> None:
    assert unquote(quote_word("a\0b"), "C") == rb"a\x00b" + b"\0"


def test_only_lines_of_ours_are_apart() -> None:
    tail = join_lines(["Traceback:", "\tat Main"])
    assert escape_text(f"it ended:\n  {tail}") == "it ended:\n  Traceback:\n          at Main"
    assert escape_text("group a\nerror: b") == r"group a\nerror: b"


def test_the_terminal_and_templates_get_nothing_else() -> None:
    console = Console(file=StringIO(), width=200)
    for text in (Text("\x1b[1m[b]x\n"), Text.assemble("\x1b[1m", ("[b]x\n", "red")), Text()):
        console.print(text if text.plain else text.append("\x1b[1m[b]x\n"))
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [r"\x1b[1m[b]x\n"] * 3
    assert show_value("\u202e") == r"\u202e"
    assert show_value(3) == 3


def test_a_log_line_stays_one_line_and_a_traceback_its_own() -> None:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(VisibleFormatter())
    try:
        raise ValueError("of \x1b[2Jx")
    except ValueError:
        seen = sys.exc_info()
    record = logging.LogRecord("x", 30, __file__, 1, "group %s", ("a\nb\x07",), seen)
    handler.emit(record)
    lines = stream.getvalue().splitlines()
    assert lines[:2] == [r"group a\nb\x07", "Traceback (most recent call last):"]
    assert lines[-1] == r"ValueError: of \x1b[2Jx"
