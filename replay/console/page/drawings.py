"""Plots, as Markup; what was drawn is kept for the next who looks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from monitoring.plots import Mark, Series, Threshold, Unit, draw_lines

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Drawing:
    """One plot; where it has two widths the stylesheet shows the one that fits."""

    title: str
    narrow: Markup
    wide: Markup | None = None


@lru_cache(maxsize=32)
def draw(
    series: tuple[Series, ...],
    *,
    marks: tuple[Mark, ...] = (),
    threshold: Threshold | None = None,
    y: Unit,
    title: str,
    both: bool = False,
) -> Drawing:
    """Draws lines, as half of a page or a phone shows them; the same again is not drawn again.

    Args:
        both: draws it for the whole width of a page too.
    """
    from markupsafe import Markup

    def make(*, wide: bool) -> Markup:
        # The drawing escapes the names in it.
        return Markup(
            draw_lines(series, marks=marks, threshold=threshold, y=y, title=title, wide=wide)
        )

    return Drawing(title, make(wide=False), make(wide=True) if both else None)
