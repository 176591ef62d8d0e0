"""Messages as a person reads them: JSON in lines, other text, or bytes; personal fields hidden.

What `stream.mask` names is hidden before anything is shown. A value that it cannot look into while
it names JSON fields is hidden whole: nothing is guessed to be harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from rich.console import RenderableType

from backlogctl.clock import read_millis
from backlogctl.formats import format_bytes, format_moment
from backlogctl.json_text import Members, read_json, write_json
from backlogctl.replay.present.layout import Facts, Text
from backlogctl.schemas.codecs import Decoded, PartDecoder
from backlogctl.values import to_document
from backlogctl_delivery.visible import escape_name, join_lines

HIDDEN = "***"
_BINARY_BYTES = 64
_LONG = 4000  # characters that people are shown of one value
_SHORT = 72  # a JSON value of so many characters is not put into lines
_KEY, _VALUE, _HEADER = "key", "value", "header:"

# What dead letters say of the error: messages and stack traces, of each framework.
_QUOTING = re.compile(
    r"exception[-._]?(message|stack-?trace)|stack-?trace|error[-._]?message", re.I
)


class Form(StrEnum):
    """How a key, a value or a header's value is shown."""

    NULL = "null"
    EMPTY = "empty"
    JSON = "json"
    TEXT = "text"
    BINARY = "binary"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Mask:
    """What is hidden: JSON fields at any depth, headers, all keys, all values."""

    fields: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    hides_key: bool = False
    hides_value: bool = False

    @classmethod
    def read(cls, names: Iterable[str]) -> Self:
        """Of `stream.mask`."""
        known = list(names)
        headers = {name.removeprefix(_HEADER) for name in known if name.startswith(_HEADER)}
        rest = {name for name in known if not name.startswith(_HEADER)}
        return cls(
            frozenset(rest - {_KEY, _VALUE}), frozenset(headers), _KEY in rest, _VALUE in rest
        )

    def hides_header(self, name: str) -> bool:
        """Its own name is masked, or it tells an error, which may quote what is masked."""
        masks = bool(self.fields) or self.hides_key or self.hides_value
        return name in self.headers or (masks and _QUOTING.search(name) is not None)


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a message, masked: `text` is JSON, text, or hexadecimal digits of its first bytes.

    `size` is that of the bytes; None where there are none (null). `told` is by which schema it was
    decoded, or why it was not; empty where the stream says of none.
    """

    form: Form
    text: str
    size: int | None
    told: str = ""

    def fold(self, longest: int = _SHORT) -> str:
        """In one line, cut."""
        text = self._word() or (
            self.text if self.form is Form.BINARY else escape_name(_fold(self.form, self.text))
        )
        cut = text if len(text) <= longest else f"{text[: longest - 1]}…"
        return f"{cut} ({format_bytes(self.size)})" if self._is_cut() else cut

    def list_lines(self) -> list[str]:
        """JSON in indented lines; anything else in one."""
        if word := self._word():
            return [word]
        text = self.text[:_LONG]
        told = len(self.text) > _LONG
        if self.form is Form.JSON and not told and len(text) > _SHORT:
            return write_json(read_json(text), indent=2).split("\n")
        lines = [text if self.form is Form.BINARY else escape_name(text)]
        return [*lines, f"… of {format_bytes(self.size)}"] if told or self._is_cut() else lines

    def _word(self) -> str:
        match self.form:
            case Form.NULL | Form.EMPTY:
                return str(self.form)
            case Form.HIDDEN:
                return f"{HIDDEN} ({format_bytes(self.size)}, hidden by `mask`)"
            case _:
                return ""

    def _is_cut(self) -> bool:
        return self.form is Form.BINARY and (self.size or 0) > _BINARY_BYTES


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message, masked."""

    partition: int
    offset: int
    time: datetime | None
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it: unlike the terminal's it holds long values whole."""
        return {
            **to_document(self),
            "headers": [{"name": name, **to_document(shown)} for name, shown in self.headers],
        }


def mask_message(
    mask: Mask,
    *,
    partition: int,
    offset: int,
    timestamp: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    decoder: PartDecoder | None = None,
) -> ShownMessage:
    """A message as anybody may see it who may see the stream's messages.

    Args:
        timestamp: milliseconds; None or negative where it has none.
        decoder: of the stream; keys and values with a schema are shown by their fields.
    """
    decoder = decoder or PartDecoder({})
    return ShownMessage(
        partition,
        offset,
        read_millis(timestamp),
        show_part(key, mask, hides=mask.hides_key, decoded=decoder.decode("key", key, headers)),
        show_part(
            *(value, mask),
            hides=mask.hides_value,
            is_open=False,
            decoded=decoder.decode("value", value, headers),
        ),
        tuple((name, show_part(raw, mask, hides=mask.hides_header(name))) for name, raw in headers),
    )


def show_part(
    raw: bytes | None,
    mask: Mask,
    *,
    hides: bool = False,
    is_open: bool = True,
    decoded: Decoded | None = None,
) -> Shown:
    """A key, a value or a header's value.

    Args:
        hides: it is hidden by its place.
        is_open: what is no JSON is shown even where `mask` names JSON fields: a plain key.
        decoded: of a key or value with a schema; where it could not be decoded it has fields all
            the same, and is not open.
    """
    if decoded is not None and raw is not None and not hides:
        # Names that are not sure hide nothing.
        text = decoded.text if decoded.is_named or not mask.fields else None
        shown = _show_bytes(raw, text, mask, is_open=False)
        return replace(shown, told=decoded.told)
    if raw is None:
        return Shown(Form.NULL, "", None)
    size = len(raw)
    if hides:
        return Shown(Form.HIDDEN, "", size)
    if not raw:
        return Shown(Form.EMPTY, "", 0)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    return _show_bytes(raw, text, mask, is_open=is_open)


def _show_bytes(raw: bytes, text: str | None, mask: Mask, *, is_open: bool) -> Shown:
    size = len(raw)
    if text is not None and (found := _mask_json(text, mask.fields)) is not None:
        return Shown(Form.JSON, found, size)
    if mask.fields and not is_open:
        return Shown(Form.HIDDEN, "", size)
    if text is None or "\0" in text:
        return Shown(Form.BINARY, raw[:_BINARY_BYTES].hex(" ", -4), size)
    return Shown(Form.TEXT, text, size)


def render_message(message: ShownMessage) -> RenderableType:
    """Its place and time, then its parts."""
    facts = Facts()
    place = Text(f"partition {message.partition}, offset {message.offset:,}", style="bold")
    facts.add("message", place)
    facts.add("time", "none" if message.time is None else format_moment(message.time))
    facts.add("key", join_lines(message.key.list_lines()))
    if message.key.told:
        facts.add("", message.key.told)
    for name, shown in message.headers:
        facts.add("header", f"{escape_name(name)}: {shown.fold(_LONG)}")
    # Each line by itself: lines keep their indent, however long one of them is.
    for number, line in enumerate(message.value.list_lines()):
        facts.add("" if number else "value", line)
    if message.value.told:
        facts.add("", message.value.told)
    return facts


def _fold(form: Form, text: str) -> str:
    return text if form is not Form.JSON else " ".join(text.split("\n"))


def _mask_json(text: str, fields: frozenset[str]) -> str | None:
    """An object or a list with the fields hidden, in one line; None where the text is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return write_json(_hide(read_json(text), fields))
    except (ValueError, RecursionError):
        return None


def _hide(value: Any, fields: frozenset[str]) -> Any:
    match value:
        case Members():
            return Members(tuple(_hide_fields(value, fields)))
        case list():
            return [_hide(item, fields) for item in value]
        case str() if fields and (inner := _mask_json(value, fields)) is not None:
            return inner  # JSON as a text inside of JSON
        case _:
            return value


def _hide_fields(value: Members, fields: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for name, item in value.pairs:
        hidden = name in fields and item is not None
        yield name, HIDDEN if hidden else _hide(item, fields)
