"""backlog.yaml as data: the safe loader, no duplicate keys, and the line of every key.

Plain words are read as YAML 1.2 reads them: only `true` and `false` are booleans, and `22:30` or
`2026-11-21` stay text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

KeyPath = tuple[str, ...]

_MAX_BYTES = 1_000_000
_MAX_NODES = 50_000
_MAX_DEPTH = 40
# Pieces of the file; the words that begin with "expected" quote only YAML's own marks.
_QUOTED = re.compile(r"'.{2,}'", re.DOTALL)


class DocumentError(Exception):
    """The text is not a document we read. Its words never hold a value of the document."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The data, and the line (from 1) on which each key stands."""

    data: dict[str, Any]
    lines: dict[KeyPath, int]


class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - pyyaml's own class attribute


_PLAIN = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
)
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"^(?:{_pattern})$"),
        ["" if character == "\0" else character for character in _first],
    )


def parse_document(text: str) -> YamlDocument:
    """Parses the text of a configuration file.
    Raises DocumentError: it is not YAML, not one mapping, repeats a key, or is absurdly large.
    """
    if len(text) > _MAX_BYTES:
        raise DocumentError("the file is larger than 1 MB")
    problem: DocumentError
    try:
        return _parse(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = error.problem or error.context or "it does not parse"
        if not words.startswith("expected"):
            words = _QUOTED.sub("'...'", words)
        problem = DocumentError(f"not YAML: {words}", mark.line + 1 if mark else None)
    except yaml.YAMLError:
        problem = DocumentError("not YAML: it holds a character that YAML does not allow")
    except RecursionError:
        problem = DocumentError("it is nested too deeply")
    except ValueError:
        problem = DocumentError("not YAML: a number or tag does not parse")
    # Raised here, not above: an exception's context would carry the text along.
    raise problem


def _parse(text: str) -> YamlDocument:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise DocumentError("the file is empty")
        if not isinstance(node, yaml.MappingNode):
            raise DocumentError("it must be a mapping of sections", node.start_mark.line + 1)
        lines: dict[KeyPath, int] = {}
        _Inspection(lines).visit(node, ())
        return YamlDocument(loader.construct_document(node), lines)
    finally:
        loader.dispose()


class _Inspection:
    """Walks the nodes before anything is built: duplicate keys, other keys than text, bombs."""

    def __init__(self, lines: dict[KeyPath, int]) -> None:
        self._lines = lines
        self._seen = 0

    def visit(self, node: yaml.Node, path: KeyPath) -> None:
        self._seen += 1
        if self._seen > _MAX_NODES or len(path) > _MAX_DEPTH:
            raise DocumentError("it is too large once its aliases are followed, or nested too far")
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self.visit(item, (*path, str(number)))
        elif isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path)

    def _visit_mapping(self, node: yaml.MappingNode, path: KeyPath) -> None:
        keys: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                self.visit(value, path)
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise DocumentError(f"a key under {dotted(path)} is not text: quote it", line)
            if key.value in keys:
                raise DocumentError(f"the key {dotted((*path, key.value))} stands twice", line)
            keys.add(key.value)
            self._lines[(*path, key.value)] = line
            self.visit(value, (*path, key.value))


def dotted(path: KeyPath) -> str:
    return ".".join(path) or "the file"
