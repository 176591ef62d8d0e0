"""Compares rebuilt messages with the log's own, but for what the stream ignores (P2.8); pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import escape as escape_glob
from typing import Any, TypeVar

from backlogctl.json_text import Members, read_json, sort_members, write_json
from backlogctl.spark_backfill.request import Difference, Proof, Variation

Header = tuple[str, bytes | None]
T = TypeVar("T")

_SHOWN = 10
_NAMED = 4
_MAX_TEXT = 60
# Where more differs, the rules are wrong: nothing is told to ignore it.
_MOST_ADVISED = 5
HEADER, FIELD = "header", "field"


@dataclass(frozen=True, slots=True)
class LogMessage:
    """The newest message of one identity in the log, not one of ours.

    `timestamp` is in ms, None where it is no time. `repeated`: an older one survives too.
    """

    identity: bytes
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class RebuiltMessage:
    """What the rules make of the row of one identity; `reason` where they cannot.

    `time` is the row's in the normal form, None where it has none.
    """

    identity: bytes
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    reason: str | None
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Ignoring:
    """What a stream leaves out of the comparison: patterns of header names, and paths of fields of
    JSON values, with dots."""

    headers: Sequence[str] = ()
    fields: Sequence[str] = ()


def compare_messages(
    pairs: Sequence[tuple[LogMessage, RebuiltMessage]],
    *,
    sampled: int,
    mutable: bool,
    ignoring: Ignoring = Ignoring(),
    decode: Decode | None = None,
    mask: Sequence[str] = (),
) -> Proof:
    """Compares bytes.

    For a mutable table values and headers are reported but not judged: the row may have changed.

    Args:
        decode: what tells how values with a schema differ; their bytes are compared all the same.
        mask: the stream's; where it hides anything, differences are told by names alone.
    """
    matched = values = headers = placed = 0
    judged: list[Difference] = []
    reported: list[Difference] = []
    varying: Counter[_Varying] = Counter()
    for log, made in pairs:
        one = _Comparison(log, made, ignoring, decode, mask)
        kinds = {item.what for item in one.differences}
        varying.update(one.varying)
        placed += one.is_placed
        values += not kinds & {"value", "row"}
        headers += not kinds & {"headers", "row"}
        serious = kinds - {"value", "headers"} if mutable else kinds
        matched += not serious
        (judged if serious else reported).extend(one.differences)
    return Proof(
        sampled=sampled,
        compared=len(pairs),
        matched=matched,
        equal_values=values,
        equal_headers=headers,
        mutable=mutable,
        differences=tuple([*judged, *reported][:_SHOWN]),
        placed=placed,
        variations=_list_variations(varying),
    )


_Varying = tuple[str, str, bool]  # header or field, its name, whether it is ignored


def _list_variations(varying: Counter[_Varying]) -> tuple[Variation, ...]:
    """The most frequent ones; those that are ignored first."""
    found: list[Variation] = []
    for is_ignored in (True, False):
        these = [(one, n) for one, n in varying.items() if one[2] is is_ignored]
        these.sort(key=lambda item: (-item[1], item[0]))
        found += [Variation(what, name, n, ignored) for (what, name, ignored), n in these[:_SHOWN]]
    return tuple(found)


# The JSON of both values, or, where they cannot be compared by field, how they differ.
Decode = Callable[[LogMessage, RebuiltMessage], tuple[bytes, bytes] | str]


class _Comparison:
    """One message with its rebuilt one."""

    def __init__(
        self,
        log: LogMessage,
        made: RebuiltMessage,
        ignoring: Ignoring,
        decode: Decode | None = None,
        mask: Sequence[str] = (),
    ) -> None:
        self._show: Callable[[bytes | None], str] = _hide if mask else _show
        self._identity = "***" if "key" in mask else _show(log.identity)
        self.differences: list[Difference] = []
        self.varying: set[_Varying] = set()
        self._log = log
        self._made = made
        self._decode = decode
        # Unknown without a key, and where the topic got partitions just then.
        is_there = made.partition in (None, log.partition)
        self.is_placed = is_there and made.key == log.key
        if made.reason is not None:
            self._differ("row", f"cannot be built: {made.reason}")
            return
        if made.key != log.key:
            self._differ(
                "key", f"is {self._show(log.key)} in the log, {self._show(made.key)} rebuilt"
            )
        if not is_there:
            self._differ("partition", f"is {log.partition} in the log, {made.partition} rebuilt")
        self._compare_values(log.value, made.value, ignoring.fields)
        self._compare_headers(log.headers, made.headers, ignoring.headers)

    def _differ(self, what: str, detail: str) -> None:
        log = self._log
        found = Difference(self._identity, log.partition, log.offset, what, detail)
        self.differences.append(found)

    def _compare_values(self, log: bytes | None, made: bytes | None, fields: Sequence[str]) -> None:
        if log == made:
            return
        told = ""
        if self._decode is not None and log is not None and made is not None:
            found = self._decode(self._log, self._made)
            if isinstance(found, str):
                self._differ("value", found)
                return
            log, made = found
            if log == made:
                self._differ("value", "holds the same fields, written otherwise")
                return
        if fields and log is not None and made is not None:
            one, two = (cut_fields(raw, fields) for raw in (log, made))
            if one is None or two is None:
                where = "in the log" if one is None else "rebuilt"
                told = f"is not JSON {where}, as `ignore_fields` needs it, so nothing is ignored; "
            else:
                differ = [n for n in fields if one.values.get(n) != two.values.get(n)]
                self.varying |= {(FIELD, name, True) for name in differ}
                log, made = one.rest, two.rest
        if log != made:
            self._differ("value", told + describe_values(log, made, self._show))
            self.varying |= {(FIELD, name, False) for name in _find_varying(log, made)}

    def _compare_headers(
        self, log: Sequence[Header], made: Sequence[Header], patterns: Sequence[str]
    ) -> None:
        names = {name for name, _ in (*log, *made)}
        built = {name for name, _ in made}
        ignored = {
            name
            for name in names
            # A trace that the rules make is theirs: they may be wrong.
            if (is_of_trace(name) and name not in built)
            or any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        for name in names:
            if [item for item in log if item[0] == name] != [i for i in made if i[0] == name]:
                self.varying.add((HEADER, name, name in ignored))
        one, two = ([item for item in side if item[0] not in ignored] for side in (log, made))
        if one != two:
            self._differ("headers", _describe_headers(one, two, self._show))


# Headers of tracing, as clients and agents add them: they are in no row.

_TRACES = ("traceparent", "tracestate", "b3", "x-b3-*", "uber-trace-id", "sentry-trace")
# It may hold what a consumer goes by, such as a tenant.
_BAGGAGE = "baggage"


def is_of_trace(header: str) -> bool:
    """Whether it holds nothing but where a message belongs in a trace, by its name."""
    return any(fnmatchcase(header.lower(), pattern) for pattern in _TRACES)


# What is ignored, and what could be, in words.


def describe_ignored(proof: Proof) -> str:
    """What is left out of the comparison, and how many messages differ in it; "" for nothing."""
    return "; ".join(
        f"{_describe_variation(item, proof)}, and is ignored"
        for item in proof.variations
        if item.ignored
    )


def advise_ignoring(proof: Proof) -> str:
    """What differs that is judged, and the settings that ignore it; "" where nothing or too much
    does. Names of fields may be data."""
    if proof.mutable:
        return ""
    parts = []
    for what in (HEADER, FIELD):
        found = [item for item in proof.variations if item.what == what and not item.ignored]
        if not 0 < len(found) <= _MOST_ADVISED:
            continue
        names = [escape_glob(item.name) if what == HEADER else item.name for item in found]
        parts.append(
            f"{', '.join(_describe_variation(item, proof) for item in found)}: "
            f"add `ignore_{what}s: [{', '.join(map(_quote, names))}]` to `message` if consumers "
            f"do not need {'it' if len(found) == 1 else 'them'}"
        )
    return "; ".join(parts)


def _describe_variation(item: Variation, proof: Proof) -> str:
    name = item.name.lower()
    of_trace = item.what == HEADER and (is_of_trace(name) or name == _BAGGAGE)
    kind = " (tracing)" if of_trace else ""
    return (
        f"the {item.what} {_quote(item.name)}{kind} differs in {item.messages} of {proof.compared}"
    )


def _quote(name: str) -> str:
    """As YAML reads it back."""
    return name if re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII) else json.dumps(name)


# Fields are cut out of the text of a value: the rest stays to the byte as it was.

_BLANKS = " \t\r\n"
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(rf"{_STRING}|[\[\]{{}},]")
_NAME = re.compile(rf"\s*({_STRING})\s*:")


@dataclass(frozen=True, slots=True)
class CutValue:
    """A JSON value without some fields: the rest of its text, and the texts of what was cut."""

    rest: bytes
    values: dict[str, list[str]] = field(default_factory=dict)


def cut_fields(raw: bytes, fields: Sequence[str]) -> CutValue | None:
    """Without the fields of these paths, such as `sent_at` or `meta.trace_id`, which go through
    lists; None for what is no JSON."""
    values: dict[str, list[str]] = {}
    try:
        text = raw.decode()
        read_json(text)
        return CutValue(_cut_inside(text, "", fields, values).encode(), values)
    except (ValueError, RecursionError):
        return None


def _cut_inside(text: str, path: str, fields: Sequence[str], values: dict[str, list[str]]) -> str:
    """The text of one JSON value without the fields.

    Args:
        path: of what is in it: "" or names, each with a dot behind it.
    """
    body = text.strip(_BLANKS)
    if body[:1] not in ("{", "[") or not any(name.startswith(path) for name in fields):
        return text
    before, _, after = text.partition(body)
    inside = body[1:-1]
    members = inside.strip(_BLANKS)
    lead, _, trail = inside.partition(members) if members else ("", "", "")
    kept = []
    for member in _split(members):
        named = _NAME.match(member) if body[0] == "{" else None
        if named is None:
            kept.append(_cut_inside(member, path, fields, values))
            continue
        here = path + json.loads(named[1])
        value = member[named.end() :]
        if here in fields:
            values.setdefault(here, []).append(value.strip(_BLANKS))
        else:
            kept.append(named[0] + _cut_inside(value, f"{here}.", fields, values))
    rest = ",".join(kept).strip(_BLANKS)
    rest = f"{lead}{rest}{trail}" if rest else ""
    return f"{before}{body[0]}{rest}{body[-1]}{after}"


def _split(members: str) -> Iterator[str]:
    """The members of an object or a list, at the commas between them."""
    depth = start = 0
    for token in _TOKEN.finditer(members):
        sign = token[0]
        depth += (sign in ("[", "{")) - (sign in ("]", "}"))
        if sign == "," and not depth:
            yield members[start : token.start()]
            start = token.end()
    if members:
        yield members[start:]


def _find_varying(log: bytes | None, made: bytes | None) -> set[str]:
    """Paths of the fields that two JSON objects differ in; none where one is something else."""
    one, two = map(_read_object, (log, made))
    try:
        return set() if one is None or two is None else set(_compare_fields(one, two, ""))
    except RecursionError:
        return set()


def _compare_fields(one: Any, two: Any, path: str) -> Iterator[str]:
    if isinstance(one, Members) and isinstance(two, Members):
        first, second = _group(one.pairs), _group(two.pairs)
        for name in {**first, **second}:
            here = f"{path}.{name}" if path else name
            lists = [side.get(name, []) for side in (first, second)]
            if len(lists[0]) != len(lists[1]):
                yield here
            else:
                for item, other in zip(*lists, strict=True):
                    yield from _compare_fields(item, other, here)
    elif isinstance(one, list) and isinstance(two, list) and path and len(one) == len(two):
        for item, other in zip(one, two, strict=True):
            yield from _compare_fields(item, other, path)
    elif one != two:
        yield path


def _read_object(raw: bytes | None) -> Members | None:
    """A JSON object; None for what is something else."""
    try:
        value = read_json((raw or b"").decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Members) else None


def _group(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """By their names, in their order."""
    found: dict[str, list[T]] = {}
    for name, item in pairs:
        found.setdefault(name, []).append(item)
    return found


# How two messages differ.


def describe_values(
    log: bytes | None, made: bytes | None, show: Callable[[bytes | None], str] | None = None
) -> str:
    """How two values differ: by field where both are JSON objects.

    Args:
        show: a value as anybody may see it.
    """
    show = show or _show
    if log is None or made is None:
        return f"is {show(log)} in the log, {show(made)} rebuilt"
    one, two = map(_read_object, (log, made))
    if one is not None and two is not None:
        with suppress(RecursionError):  # too deep to be told by field
            return _describe_objects(one, two, hides=show is _hide)
    at = next(
        (i for i, (a, b) in enumerate(zip(log, made, strict=False)) if a != b),
        min(len(log), len(made)),
    )
    return (
        f"differs from byte {at}: {show(log[at:])} in the log, {show(made[at:])} rebuilt "
        f"({len(log)} and {len(made)} bytes)"
    )


def _describe_objects(one: Members, two: Members, *, hides: bool) -> str:
    if one == two:
        return "differs in spacing or escapes only"
    one, two = map(sort_members, (one, two))
    if one == two:
        return "differs in the order of fields, perhaps in spacing or escapes too"
    return _describe_pairs(
        one.pairs, two.pairs, _hide if hides else lambda value: _cut(write_json(value))
    )


def _describe_headers(
    log: Sequence[Header], made: Sequence[Header], show: Callable[[bytes | None], str]
) -> str:
    return _describe_pairs(log, made, show) or "differ in order"


def _describe_pairs(
    log: Iterable[tuple[str, T]], made: Iterable[tuple[str, T]], show: Callable[[T], str]
) -> str:
    """The names whose values differ, some of them; "" for none."""
    one, two = _group(log), _group(made)
    parts = [f"{name} is only in the log" for name in one if name not in two]
    parts += [f"{name} is only rebuilt" for name in two if name not in one]
    parts += [
        f"{name} is {' and '.join(map(show, one[name]))} in the log, "
        f"{' and '.join(map(show, two[name]))} rebuilt"
        for name in one
        if name in two and one[name] != two[name]
    ]
    shown = ", ".join(parts[:_NAMED])
    return f"{shown}, and {len(parts) - _NAMED} more" if len(parts) > _NAMED else shown


def _hide(value: object) -> str:
    return "NULL" if value is None else "***"


def _show(raw: bytes | None) -> str:
    if raw is None:
        return "NULL"
    try:
        return _cut(repr(raw[: _MAX_TEXT * 4].decode("utf-8", "strict")))
    except UnicodeDecodeError:
        return _cut(f"0x{raw[:_MAX_TEXT].hex()}")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
