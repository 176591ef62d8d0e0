"""Names that others chose, as they are shown: nothing in them moves a cursor or turns a line.

Kafka takes any text as the id of a group, a client or a member. What is shown of it holds only
characters that can be seen; others are written as bash and Python write them: `\x1b`, `\u202e`.
"""

from __future__ import annotations

import logging
import re
import shlex
import unicodedata
from collections.abc import Iterable
from typing import Any

_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# What an escape looks like: a name that holds that already has its backslashes doubled.
_ESCAPE = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
# A longer text of ours goes on behind such a break; any other is part of a name.
_BREAK = "\n  "


def escape_text(text: str) -> str:
    """A sentence or several lines for people, safe to print.

    Lines after the first begin with two spaces; a line break without them is escaped as well, so
    that a name never begins a line.
    """
    if text.isprintable():
        return text
    return _BREAK.join(_escape(part) for part in text.split(_BREAK))


def escape_trace(text: str) -> str:
    """A traceback or a log: its line breaks stay."""
    return "\n".join(_escape(line) for line in text.split("\n"))


def escape_name(name: str) -> str:
    """A name alone; two different names never look the same.

    A printable name stays as it is. Within `$'...'` bash reads what is escaped back.
    """
    if name.isprintable() and not _ESCAPE.search(name):
        return name
    return _escape(name.replace("\\", "\\\\"))


def quote_word(word: str) -> str:
    """A word of a printed command: pasted into a shell it is that word, and nothing runs.

    No shell can pass a NUL; it is written so that the command finds nothing instead of something
    else.
    """
    if _escape(word) == word:
        return shlex.quote(word)  # noqa: TID251
    doubled = word.replace("\\", "\\\\").replace("\0", "\\\\x00").replace("'", "\\'")
    return "$'" + "".join(map(_write_bytes, doubled)) + "'"


def join_lines(lines: Iterable[str]) -> str:
    """Several lines as one text, which `escape_text` leaves apart."""
    return _BREAK.join(line.expandtabs() for line in lines)


def join_words(words: Iterable[str]) -> str:
    """A printed command of these words."""
    return " ".join(map(quote_word, words))


def show_value(value: Any) -> Any:
    """A value that a template shows, for Jinja's `finalize`: a text escaped, markup as it is."""
    return escape_text(value) if type(value) is str else value


class VisibleFormatter(logging.Formatter):
    """Log lines with what others wrote in them escaped; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escape_text(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:  # noqa: N802
        return escape_trace(super().formatException(ei))


def _escape(text: str) -> str:
    return text if text.isprintable() else "".join(map(_write, text))


def _write(char: str) -> str:
    # Spaces other than the common one are printed: they stand in people's sentences.
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    # bash takes \x80 and above for bytes.
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _write_bytes(char: str) -> str:
    """As `_write`, for any locale of the shell."""
    if ord(char) < 0x80 or _write(char) == char:
        return _write(char)
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
