"""Placeholders such as `{topic}` in the arguments of a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Formatter

FLEET_PLACEHOLDERS = ("topic", "group", "bootstrap_servers", "role", "stream", "recovery")


def check_placeholders(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuses placeholders that nothing fills in.

    Raises:
        ValueError: names the placeholder and the known ones.
    """
    known_names = tuple(known)
    named = ", ".join(f"`{{{name}}}`" for name in known_names)
    for argument in arguments:
        try:
            pieces = list(Formatter().parse(argument))
        except ValueError:
            raise ValueError(
                "has a brace without its partner; a brace of your own is written `{{` or `}}`"
            ) from None
        for _, name, form, conversion in pieces:
            if name is not None and (name not in known_names or form or conversion):
                whole = name + (f"!{conversion}" if conversion else "")
                whole += f":{form}" if form else ""
                raise ValueError(
                    f"`{{{whole}}}` is not a placeholder; known are {named}; "
                    "a brace of your own is written `{{` or `}}`"
                )


def fill_in(arguments: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """The arguments with their placeholders filled in; checked by `check_placeholders`."""
    return [argument.format_map(values) for argument in arguments]
