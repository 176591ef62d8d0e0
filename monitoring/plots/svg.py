"""Makes of matplotlib's SVG one that may stand in a page: ids of its own, colours of the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as Tree

from backlogctl_delivery.visible import escape_text

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NAME = "{http://www.w3.org/2000/svg}"

# What is drawn in, what the page calls it, and what it is where the page says nothing: legible
# on white paper, and apart from each other for those who see no red or green.
_COLOURS = {
    "#010001": ("--plot-ink", "#454c59"),
    "#010002": ("--plot-grid", "#dde1e7"),
    "#010003": ("--plot-alarm", "#b3261e"),
    "#010011": ("--plot-1", "#1f5fa8"),
    "#010012": ("--plot-2", "#c05a00"),
    "#010013": ("--plot-3", "#0d7f6f"),
    "#010014": ("--plot-4", "#8a4fa0"),
    "#010015": ("--plot-5", "#7a6a1f"),
    "#010016": ("--plot-6", "#566270"),
}
INK, GRID, ALARM, *LINES = _COLOURS
_FONT = re.compile(r"font-family: [^;]*")
_UNTURNED = re.compile(r"rotate\(-?0 ")


def clean_text(text: str) -> str:
    """A text without what XML cannot hold or what turns its direction."""
    return escape_text(text)


def adopt_svg(drawn: str, *, prefix: str, title: str) -> str:
    """The `<svg>` element alone, with ids that begin with `prefix` and colours as variables."""
    Tree.register_namespace("", _SVG)
    root = Tree.fromstring(drawn)  # noqa: S314 - matplotlib wrote it a moment ago
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}metadata") or child.tag == f"{_NAME}style":
                parent.remove(child)
    for element in root.iter():
        _rewrite(element, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", title)
    title_element = Tree.Element(f"{_NAME}title")
    title_element.text = title
    root.insert(0, title_element)
    return Tree.tostring(root, encoding="unicode")


def _rewrite(element: Tree.Element, prefix: str) -> None:
    attributes = element.attrib
    if "id" in attributes:
        attributes["id"] = prefix + attributes["id"]
    if (target := attributes.pop(_HREF, "")).startswith("#"):
        attributes["href"] = f"#{prefix}{target[1:]}"
    if "clip-path" in attributes:
        attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{prefix}")
    if style := attributes.get("style"):
        for drawn, (name, fallback) in _COLOURS.items():
            style = style.replace(drawn, f"var({name}, {fallback})")
        attributes["style"] = _FONT.sub("font-family: inherit", style)
    if _UNTURNED.match(attributes.get("transform", "")):
        del attributes["transform"]
