"""Words such as `{topic}` in the arguments of a command: checked when read, filled in when run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Formatter

FLEET_WORDS = ("topic", "group", "bootstrap_servers", "role", "stream", "recovery")


def check_words(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuses words that nothing fills in.

    Raises:
        ValueError: names the word and the known ones.
    """
    words = tuple(known)
    named = ", ".join(f"`{{{word}}}`" for word in words)
    for argument in arguments:
        try:
            pieces = list(Formatter().parse(argument))
        except ValueError:
            raise ValueError(
                "has a brace without its partner; a brace of your own is written `{{` or `}}`"
            ) from None
        for _, word, form, conversion in pieces:
            if word is not None and (word not in words or form or conversion):
                whole = word + (f"!{conversion}" if conversion else "")
                whole += f":{form}" if form else ""
                raise ValueError(
                    f"`{{{whole}}}` is not a word that is filled in; known are {named}; "
                    "a brace of your own is written `{{` or `}}`"
                )


def fill_in(arguments: Iterable[str], words: Mapping[str, str]) -> list[str]:
    """The arguments with their words filled in; `check_words` has seen them."""
    return [argument.format_map(words) for argument in arguments]
