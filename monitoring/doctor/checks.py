"""The doctor's checks and findings: each rule names its checks; docs/doctor.md is made of them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from backlogctl.errors import BacklogError
from backlogctl.kafka.errors import TopicMissing
from backlogctl.values import to_document

LOG = logging.getLogger(__name__)
_REPORT = "this is a bug: report it, with what the log says"
Part = TypeVar("Part")
Rule = TypeVar("Rule", bound=Callable[..., object])
CATALOGUE: dict[str, Check] = {}
_RULES: dict[Callable[..., Any], CheckScope] = {}


class CheckScope(StrEnum):
    TOPIC = "Topic and brokers"
    RETENTION = "Retention"
    GROUP = "Group and its consumers"
    LOG = "Producers, from the log"
    PRODUCER = "Producer, from a configuration file"
    CONSUMER = "Consumer, from a configuration file"
    CLIENT = "Producer or consumer, from a configuration file"
    DELIVERY = "Outboxes and look-back"
    RIGHTS = "Rights"
    TOOL = "The tool itself"

    def check(self, name: str, title: str, why: str, more: str = "") -> Callable[[Rule], Rule]:
        """Names a check of the decorated rule.

        Args:
            why: one or two sentences, shown with each finding.
            more: stands in the docs only.
        """

        def add(rule: Rule) -> Rule:
            CATALOGUE[name] = Check(name, self, title, why, more)
            _RULES[rule] = self
            return rule

        return add


@dataclass(frozen=True, slots=True)
class Check:
    """What a finding is about, and why it matters."""

    name: str
    room: CheckScope
    title: str
    why: str
    more: str


class CheckLevel(StrEnum):
    """Worst first."""

    LOSES = "loses"  # messages are lost, or will be after one failure that is to be expected
    STOPS = "stops"  # a recovery, or the group itself, cannot go on
    UNKNOWN = "unknown"  # could not be read, or what was read does not tell
    WARNS = "warns"  # costs time or figures, and loses nothing by itself


_ORDER = {level: number for number, level in enumerate(CheckLevel)}


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One finding.

    Attributes:
        check: a name of `CATALOGUE`, and the heading in docs/doctor.md.
        subject: what it is about, such as `topic orders`.
        found: the figure or setting that was read, as a sentence.
        mend: what mends it, as a sentence or a setting; may be empty where there are commands.
        commands: ready to be typed, in this order.
    """

    check: str
    level: CheckLevel
    subject: str
    found: str
    mend: str
    commands: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        return CATALOGUE[self.check].why

    @property
    def needs_somebody(self) -> bool:
        return self.level in (CheckLevel.LOSES, CheckLevel.STOPS)

    def to_json(self) -> dict[str, Any]:
        page = f"docs/doctor.md#{self.check}"
        return {**to_document(self), "why": self.why, "page": page}


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """A part that could not be read: what needs it cannot be judged."""

    part: str
    error: BacklogError

    @CheckScope.RIGHTS.check(
        "unread",
        "What could not be read",
        "What was not read cannot be judged: no finding is no proof here.",
    )
    def to_finding(self) -> CheckFinding:
        """That it is unknown, and why; without its topic nothing can be recovered."""
        return CheckFinding(
            "unread",
            CheckLevel.STOPS if isinstance(self.error, TopicMissing) else CheckLevel.UNKNOWN,
            self.error.subject or self.part,
            f"{self.part} could not be read: {self.error.message}",
            self.error.hint or "run `backlogctl doctor` again once it can be read",
        )


def read_part(part: str, read: Callable[[], Part]) -> Part | UnreadablePart:
    """What it reads, or why it could not: an error of this program is no reason to end."""
    try:
        return read()
    except BacklogError as error:
        return UnreadablePart(part, error)
    except Exception as error:
        LOG.exception("the doctor: %s", part)
        return UnreadablePart(part, BacklogError(_name_bug(error), hint=_REPORT))


@CheckScope.TOOL.check(
    "examination",
    "An examination that failed",
    "What was not examined is unknown: the other findings are shown all the same.",
)
def endure(subject: str, what: str, findings: Iterable[CheckFinding]) -> Iterator[CheckFinding]:
    """The findings, up to an error of theirs, which is then one itself: that `what` failed."""
    try:
        yield from findings
    except BacklogError as error:
        told, mend = f"{what} failed: {error.message}", error.hint
        yield CheckFinding(
            *("examination", CheckLevel.UNKNOWN, error.subject or subject, told),
            mend or "run `backlogctl doctor` again",
        )
    except Exception as error:
        LOG.exception("the doctor: %s: %s", subject, what)
        told = f"{what} failed: {_name_bug(error)}"
        yield CheckFinding("examination", CheckLevel.UNKNOWN, subject, told, _REPORT)


def _name_bug(error: Exception) -> str:
    return f"internal error ({type(error).__name__}: {error})".splitlines()[0]


def sort_findings(findings: Iterable[CheckFinding]) -> tuple[CheckFinding, ...]:
    """Worst first, each once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: _ORDER[one.level]))


def choose_exit_code(findings: Iterable[CheckFinding]) -> int:
    """0 well, 1 something loses messages or stops a recovery, 2 cannot tell."""
    found = list(findings)
    if any(one.needs_somebody for one in found):
        return 1
    return 2 if any(one.level is CheckLevel.UNKNOWN for one in found) else 0


def apply_rules(
    rooms: Iterable[CheckScope], parts: Mapping[str, object], subject: str
) -> Iterator[CheckFinding]:
    """Calls each rule of these rooms by the names of its parameters.

    A rule is left out where a part is unknown, unless its parameter has a default. One that fails
    is a finding about `subject`, and the others are called all the same.
    """
    chosen, known = set(rooms), {name: part for name, part in parts.items() if part is not None}
    for rule, room in _RULES.items():
        if room not in chosen:
            continue
        parameters = inspect.signature(rule).parameters
        needed = {name for name, one in parameters.items() if one.default is one.empty}
        if needed <= set(known):
            found = rule(**{name: known[name] for name in parameters if name in known})
            yield from endure(subject, f"`{getattr(rule, '__name__', rule)}`", found)
