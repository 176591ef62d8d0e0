"""The groups of a cluster as streams that could be: for `init`, which writes those chosen."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Config
from backlogctl.config.template import CLUSTER, DiscoveredStream, explain_unwritable, name_streams
from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.kafka.group_types import explain_unsupported_group
from backlogctl.kafka.readers import FoundGroup, FoundGroups, GroupTopic, list_all_groups
from backlogctl.replay.present.tables import show_name

SECONDS = 60.0
_TOPIC_GONE = "it is not there any more, or may not be described"
_MAY_BE_MORE = (
    "there may be more groups: without `Describe` on the cluster, brokers list only those that may "
    "be described"
)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group; `topics` without internal ones. `why_not`: why it cannot be chosen; "" if it can."""

    group: FoundGroup
    topics: tuple[GroupTopic, ...]
    why_not: str = ""

    @property
    def name(self) -> str:
        return self.group.name

    def list_places(self) -> list[tuple[str, str]]:
        """(group, topic) of the streams that it would be."""
        return [(self.name, one.name) for one in self.topics if one.partitions is not None]


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a cluster has: groups in alphabetical order, and what of it is unknown."""

    candidates: tuple[Candidate, ...]
    listing: FoundGroups

    @property
    def choosable(self) -> tuple[Candidate, ...]:
        return tuple(one for one in self.candidates if not one.why_not)

    def list_unknown(self) -> list[str]:
        """What there may be besides; sentences."""
        hidden = [] if self.listing.sees_all else [_MAY_BE_MORE]
        kinds = self.listing.types_unknown
        return hidden + ([f"{kinds}: share and streams groups are not listed"] if kinds else [])


def discover_groups(config: Config) -> Discovery:
    """The groups of the configuration's one cluster.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    properties = config.clusters[CLUSTER].client_properties()
    listing = list_all_groups(properties, Deadline(SECONDS))
    return Discovery(tuple(_judge(one, config.find_denial) for one in listing.groups), listing)


def _judge(group: FoundGroup, find_denial: Callable[[str], str | None]) -> Candidate:
    if why := explain_unsupported_group(group.type):
        return Candidate(group, (), why)
    if group.topics is None:
        return Candidate(group, (), "unknown: `Describe` on the group is missing")
    topics = tuple(one for one in group.topics if not find_denial(one.name))
    if not topics:
        return Candidate(group, (), "it has committed on no topic that may be seen")
    if all(one.partitions is None for one in topics):
        return Candidate(group, topics, f"its topic: {_TOPIC_GONE}")
    return Candidate(group, topics, explain_unwritable(group.name))


def choose_all(found: Discovery) -> list[Candidate]:
    """Every group that can be chosen.

    Raises:
        Refused: there is none.
    """
    if chosen := found.choosable:
        return list(chosen)
    raise Refused(_say_none(found), subject="--all", hint=_hint_unknown(found))


def choose_groups(found: Discovery, patterns: Sequence[str]) -> list[Candidate]:
    """The groups of these names or patterns, as `fnmatch` has them.

    Raises:
        UsageError: one fits no group.
        Refused: one fits only groups that cannot be chosen.
    """
    chosen: dict[str, Candidate] = {}
    for pattern in patterns:
        fitting = [one for one in found.candidates if pattern == one.name]
        fitting = fitting or [one for one in found.candidates if fnmatchcase(one.name, pattern)]
        if not fitting:
            raise UsageError(
                f"no group has this name, or fits this pattern: {pattern}",
                subject="--group",
                hint=_hint_unknown(found) or "without --group all that were found are listed",
            )
        good = [one for one in fitting if not one.why_not]
        if not good:
            raise Refused(fitting[0].why_not, subject=f"group {show_name(fitting[0].name)}")
        chosen.update((one.name, one) for one in good)
    return [one for one in found.choosable if one.name in chosen]


def read_choice(found: Discovery, answer: str) -> list[Candidate]:
    """What a person typed: numbers and ranges of the table, names, patterns, or `all`.

    Raises:
        UsageError, Refused: see `choose_groups`.
    """
    words = _split(answer)
    if words == ["all"]:
        return choose_all(found)
    if not words:
        raise UsageError("nothing was chosen")
    names: list[str] = []
    for word in words:
        numbers = _RANGE.fullmatch(word)
        names += _read_numbers(found, numbers) if numbers else [word]
    return choose_groups(found, names)


def _split(answer: str) -> list[str]:
    words = shlex.shlex(answer, posix=True, punctuation_chars=False)
    words.whitespace += ","
    words.whitespace_split, words.commenters = True, ""
    try:
        return list(words)
    except ValueError as error:
        raise UsageError(f"a quote is not closed: {answer}") from error


def _read_numbers(found: Discovery, match: re.Match[str]) -> list[str]:
    first, last = int(match[1]), int(match[2] or match[1])
    most = len(found.choosable)
    if not 1 <= first <= last <= most:
        raise UsageError(f"{match[0]} is not in the table: it has 1 to {most}")
    return [one.name for one in found.choosable[first - 1 : last]]


def name_chosen(chosen: Iterable[Candidate]) -> list[DiscoveredStream]:
    """A stream for each topic of each group, with its name."""
    return name_streams(place for one in chosen for place in one.list_places())


def list_skipped(found: Discovery, chosen: Sequence[Candidate], *, every: bool) -> list[str]:
    """What was wanted and is not written; sentences."""
    skipped = [
        f"group {show_name(one.name)}: {one.why_not}"
        for one in found.candidates
        if every and one.why_not
    ]
    skipped += [
        f"topic {topic.name} of group {show_name(one.name)}: {_TOPIC_GONE}"
        for one in chosen
        for topic in one.topics
        if topic.partitions is None
    ]
    return [f"not written: {told}" for told in skipped]


def refuse_choiceless(found: Discovery) -> BacklogError:
    """Why nothing is written where nobody chose."""
    if not found.choosable:
        return Refused(_say_none(found), subject="init", hint=_hint_unknown(found))
    return UsageError(
        "no group was chosen, and nothing was written",
        subject="init",
        hint="choose with --group NAME (again for each; patterns such as 'orders-*' too), or --all",
    )


def _say_none(found: Discovery) -> str:
    if found.candidates:
        return "none of the groups can be chosen"
    return "the cluster has no group" if found.listing.sees_all else "no group may be seen"


def _hint_unknown(found: Discovery) -> str:
    return "; ".join(found.list_unknown())


def describe_discovery(
    found: Discovery, streams: Sequence[DiscoveredStream] = ()
) -> dict[str, Any]:
    """What `init --bootstrap --json` prints of it. None is unknown."""
    names = {(one.group, one.topic): one.name for one in streams}
    return {
        "groups": [
            {
                "group": one.name,
                "type": one.group.type or None,
                "state": one.group.state or None,
                "members": one.group.members,
                "topics": None
                if one.group.topics is None
                else [
                    {
                        "topic": topic.name,
                        "partitions": topic.partitions,
                        "lag": topic.lag,
                        "stream": names.get((one.name, topic.name)),
                        "why_not": _TOPIC_GONE if topic.partitions is None else None,
                    }
                    for topic in one.topics
                ],
                "why_not": one.why_not or None,
            }
            for one in found.candidates
        ],
        "unknown": found.list_unknown(),
    }
