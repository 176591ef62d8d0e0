"""What every section is built on: frozen, unknown keys fatal, no value in any error text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    RootModel,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from backlogctl.clock import parse_duration
from backlogctl.config.documents import KeyPath
from backlogctl.config.references import Problem

# Relative paths of a configuration are relative to its file.
#
# The file's folder is the context of the validation; a configuration made in code has none.

Made = TypeVar("Made")
DEFAULT_LEDGER = "sqlite:///backlog.db"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)([^?]+)(.*)", re.DOTALL)


def anchor_path(value: Any, info: ValidationInfo) -> Any:
    """A path from the file's folder; what is no text, and all of a configuration made in code, is
    left as it is."""
    if info.context is None or not isinstance(value, str | Path):
        return value
    return info.context / Path(value).expanduser()


def _anchor_place(value: Any, info: ValidationInfo) -> Any:
    is_path = isinstance(value, str) and value and not _URL.match(value)
    return str(anchor_path(value, info)) if is_path else value


def _anchor_url(value: Any, info: ValidationInfo) -> Any:
    file = _SQLITE_FILE.fullmatch(value) if isinstance(value, str) else None
    return f"{file[1]}{anchor_path(file[2], info)}{file[3]}" if file else value


LocalPath = Annotated[Path, BeforeValidator(anchor_path)]
PlaceText = BeforeValidator(_anchor_place)
DatabaseUrl = BeforeValidator(_anchor_url)

LATER = "is not supported by this version yet"

# Keys of the product whose work comes later: refused, in other words than an unknown key.
LATER_KEYS: tuple[KeyPath, ...] = ()
LATER_VALUES: tuple[tuple[KeyPath, tuple[str, ...]], ...] = (
    (("streams", "*", "source", "stale"), ("skip_if_newer", "side_topic")),
    (("streams", "*", "deliver"), ("side_topic",)),
)

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Section(BaseModel):
    """A part of backlog.yaml. Its errors do not print what was typed (fault 59)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        validate_default=True,
    )


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like `word`, whatever its case; None where none is known."""
    by_folded = {name.casefold(): name for name in sorted(known, reverse=True)}
    found = difflib.get_close_matches(word.casefold(), sorted(by_folded), n=1, cutoff=0.0)
    return by_folded[found[0]] if found else None


def describe_unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """`unknown key; the nearest known key is `topic``."""
    nearest = find_nearest(word, known)
    told = f"the nearest known {kind} is `{nearest}`" if nearest else "none is known here"
    return f"unknown {kind}; {told}"


def yaml_key(model: type[BaseModel], field: str) -> str:
    alias = model.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else field


def known_keys(model: type[BaseModel]) -> dict[str, str]:
    """Keys that the file may have in this section, and the fields that they fill."""
    hidden = {"name"} if "name" in model.model_fields else set()
    return {yaml_key(model, field): field for field in model.model_fields if field not in hidden}


def find_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section that an annotation holds, and whether it is a mapping of such sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        model, _ = find_model(argument)
        if model is not None:
            origin = getattr(annotation, "__origin__", None)
            return model, origin is dict
    return None, False


def check_keys(model: type[BaseModel], data: Any, path: KeyPath = ()) -> list[Problem]:
    """Unknown keys, and keys and values whose work comes later, in the raw data."""
    problems: list[Problem] = []
    if issubclass(model, RootModel) or not isinstance(data, Mapping):
        return problems
    known = known_keys(model)
    for key, value in data.items():
        here = (*path, key)
        if _matches_any(here, LATER_KEYS):
            problems.append(Problem(here, LATER))
        elif key not in known:
            problems.append(Problem(here, describe_unknown("key", key, known)))
        elif isinstance(value, str) and _is_later_value(here, value):
            problems.append(Problem(here, f"`{value}` {LATER}"))
        else:
            part, is_mapping = find_model(model.model_fields[known[key]].annotation)
            if part is None:
                continue
            if not is_mapping:
                problems += check_keys(part, value, here)
            elif isinstance(value, Mapping):
                for name, item in value.items():
                    problems += check_keys(part, item, (*here, name))
    return problems


def _is_later_value(path: KeyPath, value: str) -> bool:
    return any(value in values and _matches_any(path, (p,)) for p, values in LATER_VALUES)


def _matches_any(path: KeyPath, patterns: Iterable[KeyPath]) -> bool:
    return any(
        len(path) == len(pattern)
        and all(want in ("*", part) for part, want in zip(path, pattern, strict=True))
        for pattern in patterns
    )


def fail_at(path: KeyPath, text: str) -> PydanticCustomError:
    """An error of a key below the one that is being checked."""
    return PydanticCustomError("key", "{key}: {text}", {"key": path, "text": text})


def validate(make: Callable[[], Made]) -> Made | list[Problem]:
    """What it makes, or what is wrong; pydantic's error carries what was typed, and ends here."""
    try:
        return make()
    except ValidationError as error:
        return [explain(item) for item in error.errors(include_url=False)]


def explain(error: ErrorDetails) -> Problem:
    """One of pydantic's errors in our words, without the value."""
    path = tuple(str(part) for part in error["loc"])
    context = error.get("ctx", {})
    match error["type"]:
        case "key":
            path, text = (*path, *context["key"]), str(context["text"])
        case "tuple_type" | "list_type":
            text = "must be a list"
        case "missing":
            text = "is required"
        case "literal_error" | "enum":
            text = f"must be one of {context.get('expected', '')}".replace("'", "`")
        case "model_type" | "model_attributes_type" | "dict_type":
            text = "must be a mapping of keys"
        case "string_type":
            text = "must be text (quote it if YAML reads it as something else)"
        case "extra_forbidden":
            text = "unknown key"
        case _:
            text = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return Problem(path, text)


def _read_duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a duration such as 30s, 10m, 6h or 30d")
    try:
        return parse_duration(value)
    except (ValueError, OverflowError):
        raise ValueError("must be a duration such as 30s, 10m, 6h or 30d") from None


def _check_positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than zero")
    return value


def check_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError("is not a time zone such as UTC or Europe/Berlin") from None
    return value


def check_topic(value: str) -> str:
    """Refuses what Kafka does not take as a topic's name, wildcards too (fault 60)."""
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise ValueError(
            "is not a Kafka topic name: 1 to 249 letters, digits, dots, dashes and underscores"
        )
    return value


def check_label(value: str) -> str:
    """Refuses names of clusters, sources and streams that do not print well."""
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise ValueError("must be 1 to 249 letters, digits, dots, dashes and underscores")
    return value


def check_text(value: str) -> str:
    """Refuses empty text and control characters other than those of several lines of SQL."""
    if not value.strip():
        raise ValueError("must not be empty")
    if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", value):
        raise ValueError("must not hold control characters")
    return value


def check_group(value: str) -> str:
    """Refuses what no client can ask Kafka for; any other text may be a group's id."""
    if not value.strip():
        raise ValueError("must not be empty")
    if re.search(r"[\0\ud800-\udfff]", value):
        raise ValueError("must not hold NUL or half a character, which Kafka's clients cannot send")
    return value


def _read_names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _check_names(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("must name at least one column")
    if len(set(value)) != len(value):
        raise ValueError("names a column twice")
    return value


Duration = Annotated[timedelta, BeforeValidator(_read_duration), AfterValidator(_check_positive)]
Zone = Annotated[str, AfterValidator(check_zone)]
TopicName = Annotated[str, AfterValidator(check_topic)]
Label = Annotated[str, AfterValidator(check_label)]
GroupId = Annotated[str, AfterValidator(check_group)]
Text = Annotated[str, AfterValidator(check_text)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_read_names), AfterValidator(_check_names)]
