"""Which outbox a verb is about: named, by its URL, or the only one of the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from backlog.errors import UsageError

if TYPE_CHECKING:
    from backlog.config import Config, Outbox
    from backlogctl_delivery.outbox.admin import OutboxAdmin
    from replay.cli.shared import Session

VARIABLE = "BACKLOG_OUTBOX_URL"
OutboxOption = Annotated[
    str | None,
    typer.Option(
        "--outbox", help="A name under `outboxes` of the configuration.", show_default=False
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help=f"The application's database; with a password better in {VARIABLE}. Without either "
        "the only outbox of the configuration.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An outbox; of one that only its URL says `name` is "" and `settings` None."""

    name: str
    url: str
    settings: Outbox | None
    config: Config | None

    def open_desk(self) -> OutboxAdmin:
        """Its verbs.

        Raises:
            ConfigurationError: the URL is none that can hold an outbox.
        """
        from backlogctl_delivery.outbox.admin import OutboxAdmin
        from backlogctl_delivery.outbox.database import OutboxDatabase

        return OutboxAdmin(OutboxDatabase(self.url))


def choose_outbox(session: Session, name: str | None, url: str | None) -> Chosen:
    """The one that is meant.

    Raises:
        UsageError: none is, or more than one may be.
        ConfigurationError: the configuration is wrong.
    """
    found = choose_outboxes(session, name, url)
    if len(found) > 1:
        raise UsageError(
            "it must be told which outbox",
            subject="outbox",
            hint=f"--outbox {' or '.join(one.name for one in found)}",
        )
    return found[0]


def choose_outboxes(session: Session, name: str | None, url: str | None) -> tuple[Chosen, ...]:
    """Those that may be meant: `--url`, `--outbox`, the variable, else all of the configuration.

    What is typed goes before the variable: a copied `--outbox billing` is not about another one.
    """
    if name is not None:
        config = session.load_config()
        if name not in config.outboxes:
            raise _refuse_unknown(name, config.outboxes)
        return (_describe(config, name, url),)
    if url := url or os.environ.get(VARIABLE):
        return (Chosen("", url, None, None),)
    known: Config | None = session.load_config() if session.find_config_path() else None
    if known is None or not known.outboxes:
        raise UsageError(
            "it must be told which database",
            subject="outbox",
            hint=f"--url, {VARIABLE}, or `outboxes` in the configuration",
        )
    return tuple(_describe(known, one) for one in known.outboxes)


def read_duration(text: str, option: str) -> timedelta:
    """An option's duration.

    Raises:
        UsageError: it is none.
    """
    from backlog.clock import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error), subject=option) from None


def _describe(config: Config, name: str, url: str | None = None) -> Chosen:
    return Chosen(name, url or config.sources[name].reveal_url(), config.outboxes[name], config)


def _refuse_unknown(name: str, known: Mapping[str, object]) -> UsageError:
    from backlog.config.base import describe_unknown

    return UsageError(describe_unknown("outbox", name, known), subject=f"--outbox {name}")
