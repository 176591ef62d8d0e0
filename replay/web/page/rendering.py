"""Jinja's environment: everything is escaped, and what others wrote is masked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from backlogctl.replay.present.figures import load_templates
from backlogctl.replay.web.page.delivery_rows import STANDINGS
from backlogctl.replay.web.page.streams import LEGEND
from backlogctl.replay.web.page.words import MEANINGS, list_filters, say_ago
from backlogctl.values import Recovery

_BUSY_SECONDS = 2


class Renderer:
    """Renders templates with the page's filters.

    Args:
        mask: masks the secrets in what others wrote.
        seconds: after so many a page looks again.
        packages: that have templates beside those of the page.
    """

    def __init__(
        self,
        mask: Callable[[str], str],
        clock: Callable[[], datetime],
        seconds: float,
        *packages: str,
    ) -> None:
        self._clock = clock
        self._seconds = max(2, round(seconds))
        self._environment = load_templates(*packages, "backlogctl.replay.web.page")
        self._environment.filters.update(list_filters(mask))
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

    def render_problem(
        self,
        up: str,
        title: str,
        told: str,
        *,
        hint: str = "",
        nearest: Sequence[str] = (),
        recoveries: Iterable[Recovery] = (),
        kind: str = "recoveries",
        home: bool = True,
    ) -> str:
        """A page that says one thing; secrets in it are masked.

        Args:
            nearest: streams that may be meant.
            recoveries: to choose one of. kind: what of it is led to, `recoveries` or `reports`.
            home: whether the overview is of any use to who reads it.
        """
        rows = [{"recovery": one, "command": ""} for one in recoveries]
        values: dict[str, Any] = {"title": title, "told": told, "hint": hint, "nearest": nearest}
        return self.render("problem.html", up, **values, rows=rows, kind=kind, home=home)
