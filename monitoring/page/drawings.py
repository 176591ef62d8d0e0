"""Plots for wide and for narrow screens; what was drawn is kept for the next who looks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from monitoring.plots import Mark, Series, Threshold, Unit, draw_lines

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Drawing:
    """One plot in two widths: the stylesheet shows the one that fits."""

    title: str
    wide: Markup
    narrow: Markup


@lru_cache(maxsize=32)
def draw(
    series: tuple[Series, ...],
    *,
    marks: tuple[Mark, ...] = (),
    threshold: Threshold | None = None,
    y: Unit,
    title: str,
) -> Drawing:
    """Draws lines; the same ones again are not drawn again."""
    from markupsafe import Markup

    def make(*, wide: bool) -> Markup:
        # The drawing escapes the names in it.
        return Markup(
            draw_lines(series, marks=marks, threshold=threshold, y=y, title=title, wide=wide)
        )

    return Drawing(title, make(wide=True), make(wide=False))
