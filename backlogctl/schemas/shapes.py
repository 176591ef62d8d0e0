"""What the values of a schema hold, in types of SQL: so that conditions can name their fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TEXT = "string"
# Types that contain themselves end somewhere: what is deeper is text, its JSON.
DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Items:
    """A list of values of one shape."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Entries:
    """Values of one shape by names."""

    item: Shape


# Names with their shapes, lists, maps, or the name of a type of SQL.
Shape = Mapping[str, "Shape"] | Items | Entries | str


def merge_shapes(shapes: Iterable[Shape]) -> Shape:
    """One that holds values of each; where two do not go together, their JSON as text."""
    first, *rest = shapes
    for one in rest:
        first = _merge(first, one)
    return first


def _merge(one: Shape, two: Shape) -> Shape:
    if one == two:
        return one
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        both = {name: _merge(shape, two[name]) for name, shape in one.items() if name in two}
        return {**one, **two, **both}
    if isinstance(one, Items) and isinstance(two, Items):
        return Items(_merge(one.item, two.item))
    if isinstance(one, Entries) and isinstance(two, Entries):
        return Entries(_merge(one.item, two.item))
    return TEXT
