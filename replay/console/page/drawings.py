"""Plots for a page, as Markup."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from monitoring.plots import Mark, Series, Threshold, Unit, draw_lines


@dataclass(frozen=True, slots=True)
class Drawing:
    """One plot; where it has two widths the stylesheet shows the one that fits."""

    title: str
    narrow: Markup
    wide: Markup | None = None


def draw(
    series: tuple[Series, ...],
    *,
    marks: tuple[Mark, ...] = (),
    threshold: Threshold | None = None,
    y: Unit,
    title: str,
    both: bool = False,
) -> Drawing:
    """Lines, as half of a page or a phone shows them; `both`: for a page's whole width, too."""
    # The drawing escapes the names in it.
    widths = [
        Markup(draw_lines(series, marks=marks, threshold=threshold, y=y, title=title, wide=wide))
        for wide in ([False, True] if both else [False])
    ]
    return Drawing(title, *widths)
