"""Jinja's environment: everything is escaped, and what others wrote is masked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from backlog.config import Config
from monitoring.page.offsets import LEGEND
from monitoring.page.words import MEANINGS, list_filters, say_ago


class Renderer:
    """Renders the templates of the page."""

    def __init__(self, config: Config, clock: Callable[[], datetime]) -> None:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self._clock = clock
        self._seconds = max(2, round(config.watch.interval.total_seconds()))
        self._environment = Environment(
            loader=PackageLoader("monitoring.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(list_filters(config.mask_secrets))
        self._environment.globals.update(meanings=MEANINGS, legend=LEGEND)

    def render(self, template: str, up: str, **values: Any) -> str:
        """One page.

        Args:
            up: the way to the overview from it: "" or some `../`.
        """
        now = self._clock()
        return self._environment.get_template(template).render(
            up=up or "./", now=now, ago=partial(say_ago, now=now), refresh=self._seconds, **values
        )
