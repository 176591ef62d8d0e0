"""Messages as people see them: nothing personal, nothing that moves the cursor."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.replay.present.layout import WholeConsole
from backlogctl.replay.present.messages import (
    HIDDEN,
    Form,
    Mask,
    mask_message,
    render_message,
    show_part,
)

NONE = Mask()
EMAIL = Mask.read(["email"])


@pytest.mark.parametrize(
    ("raw", "form", "lines"),
    [
        (None, Form.NULL, ["null"]),
        (b"", Form.EMPTY, ["empty"]),
        (b"plain", Form.TEXT, ["plain"]),
        ("schön\n☂".encode(), Form.TEXT, ["schön\\n☂"]),
        (b"\x1b[2J", Form.TEXT, ["\\x1b[2J"]),
        (b"{broken", Form.TEXT, ["{broken"]),
        (b'{"a":1}', Form.JSON, ['{"a": 1}']),
        (b"\x00\x00\x00\x00\x2a\xff", Form.BINARY, ["00000000 2aff"]),
        (b"\x00" * 4, Form.BINARY, ["00000000"]),
    ],
)
def test_each_form(raw: bytes | None, form: Form, lines: list[str]) -> None:
    shown = show_part(raw, NONE)
    assert (shown.form, shown.list_lines()) == (form, lines)


def test_long_ones_are_cut_for_people_and_whole_in_the_document() -> None:
    bytes_ = show_part(bytes(range(200, 250)) * 4, NONE)
    assert bytes_.list_lines()[1] == "… of 200 B"
    assert len(bytes_.text.replace(" ", "")) == 128, "the first 64 bytes"
    text = show_part(b"x" * 10_000, NONE)
    assert len(text.list_lines()[0]) == 4000
    assert len(text.text) == 10_000
    assert text.fold(20) == f"{'x' * 19}…"
    lines = show_part(json.dumps({"order": "o" * 40, "city": "c" * 40}).encode(), NONE)
    assert lines.list_lines() == ["{", f'  "order": "{"o" * 40}",', f'  "city": "{"c" * 40}"', "}"]


def test_fields_are_hidden_at_any_depth() -> None:
    value = {
        "email": "ada@example.org",
        "orders": [{"email": ["a@b"], "id": 1}, {"to": {"email": {"x": 1}}}],
        "payload": json.dumps({"email": "inner@example.org", "n": 2}),
        "null": None,
    }
    shown = show_part(json.dumps(value).encode(), EMAIL, is_open=False)
    assert "@" not in shown.text
    seen = json.loads(shown.text)
    assert seen["orders"] == [{"email": HIDDEN, "id": 1}, {"to": {"email": HIDDEN}}]
    assert json.loads(seen["payload"]) == {"email": HIDDEN, "n": 2}


@pytest.mark.parametrize("raw", [b"ada@example.org", b"{broken: ada@", b"\x00\x01ada@example.org"])
def test_a_value_that_cannot_be_looked_into_is_hidden_whole(raw: bytes) -> None:
    shown = mask_message(EMAIL, partition=0, offset=1, timestamp=1, key=b"k", value=raw)
    assert shown.value.form is Form.HIDDEN
    assert "ada" not in json.dumps(shown.to_json())
    assert shown.key.text == "k", "a plain key is no value"


def test_key_value_and_headers_are_hidden_by_name() -> None:
    mask = Mask.read(["key", "value", "header:user"])
    shown = mask_message(
        mask,
        partition=2,
        offset=70_000,
        timestamp=1_760_000_000_000,
        key=b"secret-1",
        value=b'{"a": "secret-2"}',
        headers=[("user", b"secret-3"), ("user", None), ("trace", b"abc")],
    )
    assert "secret" not in json.dumps(shown.to_json())
    assert [part.form for _, part in shown.headers] == [Form.HIDDEN, Form.NULL, Form.TEXT]
    out = io.StringIO()
    WholeConsole(file=out, width=100).print(render_message(shown))
    assert "secret" not in out.getvalue()
    assert "partition 2, offset 70,000" in out.getvalue()
    assert "2025-10-09 08:53:20Z" in out.getvalue()


@pytest.mark.parametrize("length", [20, 200])
def test_lines_of_json_keep_their_indent(length: int) -> None:
    value = json.dumps({"id": 650, "deep": {"note": "y" * length}, "more": "z" * 60}).encode()
    shown = mask_message(
        NONE, partition=0, offset=0, timestamp=-1, key=b"k", value=value, headers=[]
    )
    out = io.StringIO()
    WholeConsole(file=out, width=80).print(render_message(shown))
    lines = out.getvalue().replace("value", "     ").splitlines()
    (opened,) = (line.index("{") for line in lines if line.strip() == "{")
    assert opened == lines[-1].index("}")


@given(key=st.binary(), value=st.binary(), name=st.text(), header=st.none() | st.binary())
def test_nothing_in_a_message_moves_the_cursor(
    key: bytes, value: bytes, name: str, header: bytes | None
) -> None:
    for mask in (NONE, EMAIL):
        shown = mask_message(
            mask,
            partition=0,
            offset=0,
            timestamp=-1,
            key=key,
            value=value,
            headers=[(name, header)],
        )
        out = io.StringIO()
        WholeConsole(file=out, width=80).print(render_message(shown))
        for char in out.getvalue().replace("\n", ""):
            # Spaces other than the common one are let through.
            assert char.isprintable() or unicodedata.category(char) == "Zs"


@pytest.mark.parametrize("masked", ["email", "key", "value"])
def test_what_tells_an_error_may_quote_what_is_masked(masked: str) -> None:
    names = (
        "kafka_dlt-exception-message", "kafka_dlt-exception-stacktrace",
        "__connect.errors.exception.message", "__connect.errors.exception.stacktrace",
        "x-exception-message",
    )  # fmt: skip
    for name in names:
        assert Mask.read([masked]).hides_header(name)
        assert not Mask.read(["header:other"]).hides_header(name)
    for name in ("trace", "kafka_dlt-exception-fqcn", "kafka_dlt-original-offset"):
        assert not Mask.read([masked]).hides_header(name)
    message = mask_message(
        Mask.read([masked]), partition=0, offset=0, timestamp=None, key=None, value=None,
        headers=[(names[0], b"bad: u7@x.org")],
    )  # fmt: skip
    assert "u7@x.org" not in str(message.to_json())
