"""Reads what an operator says when a plan is made, from the shell or from a form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic import (
    BeforeValidator,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from backlogctl.clock import format_time, parse_time
from backlogctl.config import Config, Stream
from backlogctl.config.base import explain
from backlogctl.errors import UsageError
from backlogctl.replay.engine.plan import Options

OptionsT = TypeVar("OptionsT", bound=Options)
_ZONE = "zone"
# Of the model as a whole; its message names the options.
_WHOLE = "options"


def _read_moment(value: object, info: ValidationInfo) -> object:
    """A time without a zone is wall clock time where the stream's source is."""
    if not isinstance(value, str):
        return value
    zone = (info.context or {}).get(_ZONE, ZoneInfo("UTC"))
    try:
        return parse_time(value, zone)
    except (ValueError, OverflowError):
        raise PydanticCustomError(
            "moment",
            "{told} is not a time in ISO 8601",
            {
                "told": repr(value),
                "hint": f"such as 2026-11-21T08:00 ({zone.key}) or 2026-11-21T08:00:00Z",
            },
        ) from None


OptionalMoment = Annotated[
    Annotated[datetime, PlainSerializer(format_time, when_used="json-unless-none")] | None,
    BeforeValidator(_read_moment),
]
"""A time, or None; text is ISO 8601."""


def list_words(field: str, known: tuple[str, ...], named: tuple[str, ...] = ()) -> Any:
    """A validator: each word of the field is one of these.

    Args:
        named: words that are said with a name, as `WORD:NAME`.
    """
    forms = (*known, *(f"{word}:NAME" for word in named))

    def check(cls: object, value: Any) -> Any:
        words = value if isinstance(value, tuple) else () if value is None else (value,)
        for word in words:
            is_named = isinstance(word, str) and any(
                word.startswith(f"{each}:") and len(word) > len(each) + 1 for each in named
            )
            if word not in known and not is_named:
                raise PydanticCustomError(
                    "word",
                    "{told} is not known",
                    {"told": repr(word), "hint": f"one of {', '.join(forms)}"},
                )
        return value

    return field_validator(field)(classmethod(check))


def read_options(
    model: type[OptionsT],
    said: Mapping[str, Any],
    config: Config,
    stream: Stream,
    name_option: Callable[[str], str] = str,
) -> OptionsT:
    """The options of a plan; what is None, or an empty list, was not said.

    Text is no number, and `true` is none: only times are read from text. JSON has one kind of
    number, so that 10.0 is whole.

    Args:
        name_option: how the caller calls an option in an error, such as `--since`.

    Raises:
        UsageError: names the option, and what would be right.
    """
    zone = "UTC" if stream.source is None else config.sources[stream.source.database].timezone
    given = {name: _read_json(value) for name, value in said.items() if not _is_unsaid(value)}
    try:
        return model.model_validate(given, strict=True, context={_ZONE: ZoneInfo(zone)})
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
    problem = explain(details)
    raise UsageError(
        problem.text,
        subject=name_option(problem.path[0]) if problem.path else _WHOLE,
        hint=str(details.get("ctx", {}).get("hint", "")),
    )


def spell_option(name: str, info: FieldInfo) -> str:
    """A field of the options as the shell has it: `--since`."""
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return f"--{extra.get('option', name)}".replace("_", "-")


def _is_unsaid(value: object) -> bool:
    return value is None or value in ([], ())


def _read_json(value: object) -> object:
    """A list as a tuple, and a whole number as one."""
    if isinstance(value, list):
        return tuple(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value
