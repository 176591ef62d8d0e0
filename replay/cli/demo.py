"""`backlogctl demo`: what it is for, told as stories with real parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from backlog.errors import UsageError
from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from rich.console import Console


class Told(Protocol):
    """What a story came to."""

    @property
    def passed(self) -> bool:
        """Whether all is well."""

    def to_json(self) -> dict[str, Any]:
        """The figures."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; a story takes some of it."""

    report: Path | None
    consumed: bool
    secure: bool


def _tell_rebuild(console: Console, options: Options) -> Told:
    from replay.demo.rebuild.story import tell_story

    return tell_story(console, options.report, consumed=options.consumed, secure=options.secure)


def _tell_expand(console: Console, options: Options) -> Told:
    from replay.demo.expand.story import tell_story

    return tell_story(console, report=options.report)


def _tell_offload(console: Console, options: Options) -> Told:
    from replay.demo.offload.story import tell_story

    return tell_story(console, report=options.report)


def _tell_delivery(console: Console, options: Options) -> Told:
    from replay.demo.delivery.story import tell_story

    return tell_story(console)


class Story(StrEnum):
    """The stories there are."""

    REBUILD = "rebuild"
    EXPAND = "expand"
    OFFLOAD = "offload"
    DELIVERY = "delivery"


@dataclass(frozen=True, slots=True)
class Entry:
    """A story, and the options that go with it."""

    help: str
    tell: Callable[[Console, Options], Told]
    takes: frozenset[str]


STORIES: Mapping[Story, Entry] = {
    Story.REBUILD: Entry(
        "lose 1,000 of 10,000 orders for real, and put exactly those back",
        _tell_rebuild,
        frozenset({"--report", "--consumed", "--secure"}),
    ),
    Story.EXPAND: Entry(
        "drain a backlog of 300,000 orders ten times as fast", _tell_expand, frozenset({"--report"})
    ),
    Story.OFFLOAD: Entry(
        "a disk is nearly full; move what is unread into an archive, and put it back",
        _tell_offload,
        frozenset({"--report"}),
    ),
    Story.DELIVERY: Entry(
        "kill an outbox, look-back and their consumers at random; each order is handled once",
        _tell_delivery,
        frozenset(),
    ),
}


@verb
def run_demo(
    session: Session,
    story: Annotated[
        str,
        typer.Argument(
            help=" ".join(f"`{name}`: {entry.help}." for name, entry in STORIES.items()),
        ),
    ] = str(Story.REBUILD),
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="Keep the incident report of a story's recovery, as one HTML file.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    consumed: Annotated[
        bool,
        typer.Option(
            "--consumed",
            help="With `rebuild`: the consumer keeps a table of what it handled, and the plan "
            "looks into it.",
        ),
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With `rebuild`: on a broker with logins over TLS and an authorizer, as a user "
            "with exactly the rights of `backlogctl acl`.",
        ),
    ] = False,
) -> None:
    """Tell a story on a real Kafka that is gone afterwards (about a minute)."""
    if story not in STORIES:
        known = ", ".join(STORIES)
        raise UsageError(f"no such story: {story}", subject="demo", hint=f"one of {known}")
    entry = STORIES[Story(story)]
    asked = {"--report": report is not None, "--consumed": consumed, "--secure": secure}
    for option, is_asked in asked.items():
        if is_asked and option not in entry.takes:
            stories = " or ".join(
                f"`{name}`" for name, one in STORIES.items() if option in one.takes
            )
            raise UsageError(f"goes with the story {stories} only", subject=option)
    if report is not None:
        from replay.report.files import check_writable

        report.parent.mkdir(parents=True, exist_ok=True)
        check_writable(report)
    console = session.err if session.json else session.out
    told = entry.tell(console, Options(report, consumed, secure))
    if session.json:
        session.write_document(told.to_json())
    if not told.passed:
        raise typer.Exit(1)
