"""The text of a client's file as names and values: Java properties, YAML, JSON, INI, environment.

A file has documents, of which Spring chooses by profile: `---` divides them in YAML, `#---` or
`!---` in properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from backlogctl.errors import UsageError

MOST_BYTES = 1_000_000
Document = dict[str, str]

_LINE = re.compile(r"((?:\\.|[^\s=:\\])+)\s*[=:\s]?\s*(.*)", re.DOTALL)
_DIVIDER = re.compile(r"[#!]---\s*")
_SECTION = re.compile(r"\[\s*([\w.\- ]+?)\s*\]")
_VARIABLE = re.compile(r"(?:export\s+)?([A-Z][A-Z0-9_]*)\s*=\s*(.*)")
# Maven puts such a value in when it builds; `@` begins no value of YAML.
_FILTERED = re.compile(r"(?m)^(\s*[\w.\-\[\]]+:\s+)(@[^@\s]+@\S*)[ \t]*$")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_documents(path: Path) -> list[Document]:
    """The documents of a file: values by name, as they are written; nested names joined by dots.
    Raises UsageError: there is no such file, or it is no text of these formats.
    """
    subject = f"client file {path}"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError("is too large for a client's settings", subject=subject)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise UsageError(f"could not be read: {reason}", subject=subject) from None
    if path.suffix in (".yml", ".yaml", ".json") or text.lstrip().startswith("{"):
        return _read_yaml(text, subject)
    lines = [line.strip() for line in text.splitlines()]
    written = [line for line in lines if line and line[0] not in "#!"]
    variables = [found for line in written if (found := _VARIABLE.fullmatch(line))]
    if written and len(variables) == len(written):
        return [{found[1]: _unquote(found[2].strip()) for found in variables}]
    return list(_read_properties(text))


def _read_yaml(text: str, subject: str) -> list[Document]:
    try:
        documents = list(yaml.safe_load_all(_FILTERED.sub(r'\1"\2"', text)))
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise UsageError(f"is not YAML{where}", subject=subject) from None
    return [dict(_flatten(document, "")) for document in documents]


def _flatten(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            dot = "." if prefix and not str(name).startswith("[") else ""
            yield from _flatten(item, f"{prefix}{dot}{name}")
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for number, item in enumerate(value):
            yield from _flatten(item, f"{prefix}[{number}]")
    elif isinstance(value, list):
        yield prefix, ",".join(map(str, value))
    elif isinstance(value, bool):
        yield prefix, str(value).lower()
    elif value is not None:
        yield prefix, str(value)


def _unquote(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value


def _read_properties(text: str) -> Iterator[Document]:
    """As Java's Properties: an odd backslash at the end goes on, `#` and `!` begin comments.

    `[section]` of an INI file stands before the names, except `[default]`.
    """
    document: Document = {}
    section = ""
    lines = iter(text.splitlines())
    for line in lines:
        if _DIVIDER.fullmatch(line):
            yield document
            document = {}
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        while re.search(r"(?<!\\)(?:\\\\)*\\$", logical):
            logical = logical[:-1] + next(lines, "").lstrip()
        if found := _SECTION.fullmatch(logical.rstrip()):
            section = "" if found[1].lower() == "default" else f"{found[1]}."
        elif found := _LINE.fullmatch(logical):
            document[section + _unescape(found[1])] = _unescape(found[2]).strip()
    yield document


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text)
