"""Which metrics and labels a PromQL expression names, and which of them do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backlogctl.monitoring.metrics.catalogue import CATALOGUE
from backlogctl_delivery.idempotent import metrics as once
from backlogctl_delivery.lookback import metrics as look_back
from backlogctl_delivery.outbox import metrics as outbox

LABELS = {
    metric.exported_name: frozenset(metric.labels)
    for metric in (*CATALOGUE, *outbox.CATALOGUE, *look_back.CATALOGUE, *once.CATALOGUE)
}
# Prometheus adds the first two to all it scrapes.
EVERYWHERE = frozenset({"instance", "job"})
_OWN = {"ALERTS"}

_TOKEN = re.compile(
    r"""\s+|\#.*|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)"""
    r"""|(?P<variable>\$\{?\w+(?::\w+)?\}?)|(?P<number>\d[\w.]*)|(?P<word>[a-zA-Z_:][\w:]*)"""
    r"""|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],:@.])"""
)
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_BETWEEN = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "start", "end"}


@dataclass(frozen=True)
class Names:
    """`selected` are metrics with the labels that their selectors name; `kept` is what `by` keeps."""

    selected: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    listed: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)

    @property
    def result_labels(self) -> set[str]:
        """Labels that the result may have."""
        return self.kept or set().union(*(LABELS.get(name, ()) for name, _ in self.selected))


def read_names(expr: str) -> Names:
    """Reads an expression; Grafana's variables may stand where values and durations do.

    Raises:
        ValueError: what stands there is not PromQL.
    """
    tokens = list(_split(expr))
    names = Names()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if text == "[":
            at = _find(tokens, at, "]")
        elif text == "{":
            raise ValueError(f"a selector without a name: {expr}")
        elif kind == "word" and text in _LISTS:
            end = _find(tokens, at, ")")
            words = {word for kind, word in tokens[at:end] if kind == "word"} - {text}
            names.listed.update(words)
            if text == "by":
                names.kept.update(words)
            at = end
        elif kind == "word" and following not in {"(", *_LISTS} and text.lower() not in _BETWEEN:
            end = _find(tokens, at, "}") if following == "{" else at
            inside = tokens[at + 2 : end]
            labels = frozenset(word for kind, word in inside if kind == "word")
            names.selected.append((text, labels))
            at = end
        at += 1
    return names


def list_errors(expr: str, used: Iterable[str] = ()) -> list[str]:
    """What the expression names and the catalogue has not; `used` are labels used of the result."""
    names = read_names(expr)
    errors = []
    for name, labels in names.selected:
        if name in _OWN:
            continue
        if name not in LABELS:
            errors.append(f"no metric {name}: {expr}")
            continue
        errors += [
            f"{name} has no label {label}: {expr}"
            for label in sorted(labels - LABELS[name] - EVERYWHERE)
        ]
    known = set().union(*(LABELS.get(name, ()) for name, _ in names.selected))
    errors += [
        f"nothing has the label {word}: {expr}"
        for word in sorted(names.listed - known - EVERYWHERE)
    ]
    lost = set(used) - names.result_labels - EVERYWHERE
    return errors + [f"the result has no label {word}: {expr}" for word in sorted(lost)]


def _split(expr: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expr):
        found = _TOKEN.match(expr, at)
        if found is None:
            raise ValueError(f"not PromQL at {expr[at : at + 20]!r}: {expr}")
        at = found.end()
        if found.lastgroup is not None:
            yield found.lastgroup, found[0]


def _find(tokens: list[tuple[str, str]], at: int, sign: str) -> int:
    for number in range(at, len(tokens)):
        if tokens[number][1] == sign:
            return number
    raise ValueError(f"{sign} is missing")
