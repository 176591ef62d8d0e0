"""Line plots as inline SVG, for the page and the incident report."""

from monitoring.plots.drawing import draw_lines
from monitoring.plots.scales import Unit
from monitoring.plots.values import Mark, Series, Threshold

__all__ = ["Mark", "Series", "Threshold", "Unit", "draw_lines"]
