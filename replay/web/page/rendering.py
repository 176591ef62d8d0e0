"""Jinja's environment: everything is escaped, and what others wrote is masked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from backlogctl.config import Config
from backlogctl.replay.present.figures import load_templates
from backlogctl.replay.web.page.overview import STANDINGS
from backlogctl.replay.web.page.streams import LEGEND
from backlogctl.replay.web.page.words import MEANINGS, list_filters, say_ago

if TYPE_CHECKING:
    from jinja2 import Environment


def make_templates(mask: Callable[[str], str], *packages: str) -> Environment:
    """Templates of the packages with the page's filters.

    Args:
        mask: masks the secrets in what others wrote.
    """
    environment = load_templates(*packages)
    environment.filters.update(list_filters(mask))
    return environment


_BUSY_SECONDS = 2


class Renderer:
    """Renders the templates of the page."""

    def __init__(self, config: Config, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._seconds = max(2, round(config.watch.interval.total_seconds()))
        self._environment = make_templates(config.mask_secrets, "backlogctl.replay.web.page")
        self._environment.globals.update(meanings=MEANINGS, standings=STANDINGS, legend=LEGEND)

    def render(self, template: str, up: str, *, busy: bool = False, **values: Any) -> str:
        """One page.

        Args:
            up: the way to the overview from it: "" or some `../`.
            busy: something on it runs, and people watch it.
        """
        now = self._clock()
        return self._environment.get_template(template).render(
            up=up or "./",
            now=now,
            ago=partial(say_ago, now=now),
            refresh=min(_BUSY_SECONDS, self._seconds) if busy else self._seconds,
            **values,
        )
