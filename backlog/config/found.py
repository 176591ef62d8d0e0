"""A backlog.yaml for streams that were found on a cluster: what is known stands in it, the rest as
comments of the template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from backlog.config.root import Config
from backlog.config.template import split_template
from backlog.errors import ConfigurationError

CLUSTER = "main"
_LONGEST = 249
# Read as text by every reader of YAML; other texts are quoted.
_PLAIN = re.compile(
    r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[a-z_](?:[\w./-]|:(?=\w))*", re.ASCII | re.I
)
_MADE_BY = "# Made by `backlogctl init --bootstrap`: the streams are what was found and chosen.\n"


@dataclass(frozen=True, slots=True)
class DiscoveredStream:
    """A stream to be written; `name` is its key."""

    name: str
    topic: str
    group: str


def name_streams(places: Iterable[tuple[str, str]]) -> list[DiscoveredStream]:
    """Streams of (group, topic), each with a name of its own that the configuration takes.

    The topic's name; `<topic>.<group>` where several groups read it.
    """
    wanted = sorted(set(places), key=lambda place: (place[1], place[0]))
    readers = Counter(topic for _, topic in wanted)
    taken = {topic for topic, count in readers.items() if count == 1}
    found: list[DiscoveredStream] = []
    for group, topic in wanted:
        name = topic
        if readers[topic] > 1:
            name = _find_free(f"{topic}.{_make_label(group)}", taken)
            taken.add(name)
        found.append(DiscoveredStream(name, topic, group))
    return found


def explain_unwritable(group: str) -> str:
    """Why no stream can have a group of this name; "" where one can."""
    if "${" in group:
        return "backlog.yaml does not take this name: `${` begins a reference"
    stream = DiscoveredStream("stream", "topic", group)
    cluster = _render_cluster({"bootstrap.servers": "host:9092"})
    try:
        config = Config.from_text("".join([*cluster, *_render_streams([stream])]), env={})
    except ConfigurationError as error:
        reason = error.message.partition("): ")[2] or error.message
        return f"backlog.yaml does not take this name: {reason}"
    written = config.stream(stream.name).group == group
    return "" if written else "backlog.yaml does not take this name as it is"


def _make_label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "group"


def _find_free(name: str, taken: set[str]) -> str:
    number, free = 1, name[:_LONGEST]
    while free in taken:
        number += 1
        free = f"{name[: _LONGEST - len(str(number)) - 1]}-{number}"
    return free


def render_discovered(properties: Mapping[str, str], streams: Sequence[DiscoveredStream]) -> str:
    """A backlog.yaml with these streams.

    Args:
        properties: the cluster's client properties; secrets in them are references.
    """
    template = split_template()
    title, _, head = template.head.partition("\n")
    parts = [title, "\n", _MADE_BY, head, *_render_cluster(properties), "\n"]
    parts += [*_comment_out(template.sources.rstrip("\n"), ""), "\n", *_render_streams(streams)]
    if streams:
        parts += ["    # What else a stream may say; a rebuild needs `source`, an expansion\n"]
        parts += ["    # `consumers`.\n", *_comment_out(template.stream, "    ")]
    return "".join([*parts, template.outboxes])


def _render_cluster(properties: Mapping[str, str]) -> Iterator[str]:
    yield f"clusters:\n  {CLUSTER}:\n"
    for name, value in properties.items():
        yield f"    {_write(name)}: {_write(value)}\n"


def _render_streams(streams: Sequence[DiscoveredStream]) -> Iterator[str]:
    yield "streams:\n" if streams else "streams: {}\n"
    for stream in streams:
        yield f"  {_write(stream.name)}:\n    cluster: {CLUSTER}\n"
        yield f"    topic: {_write(stream.topic)}\n    group: {_write(stream.group)}\n"


def _comment_out(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        rest = line.removeprefix(indent)
        told = rest if rest.startswith("#") else f"# {rest}"
        yield f"{indent}{told}".rstrip() + "\n"


def _write(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    width = 10 * len(text) + 100  # one line, whatever it is escaped to
    written: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=width)
    return written.rstrip("\n")
