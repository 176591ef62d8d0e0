"""Values and keys with a schema: their format, and the registry that knows the schema."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Protocol, Self
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from backlogctl.config.base import Label, LocalPath, Names, Section, Text

KINDS = ("avro", "protobuf", "json_schema")


def _check_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL such as https://registry:8081")
    if parts.username or parts.password:
        raise ValueError("must hold no login: say `user` and `password`")
    return value.rstrip("/")


class SchemaRegistry(Section):
    """A schema registry with Confluent's interface; it is only read."""

    url: Annotated[Text, AfterValidator(_check_url)] = Field(
        description="Its address, of Apicurio `https://HOST/apis/ccompat/v7`."
    )
    user: Text | None = Field(default=None, description="Login with a password.")
    password: SecretStr | None = Field(
        default=None, description="By reference, such as `${env:REGISTRY_PASSWORD}`."
    )
    token: SecretStr | None = Field(
        default=None, description="Sent as `Authorization: Bearer`. By reference."
    )
    ca: LocalPath | None = Field(
        default=None, description="PEM file of who signs its certificate; else the machine's."
    )

    @model_validator(mode="after")
    def _check_login(self) -> SchemaRegistry:
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` go together")
        if self.user is not None and self.token is not None:
            raise ValueError("must have one login: `token`, or `user` with `password`")
        if self.token is not None and not self.url.startswith("https:"):
            raise ValueError("`token` needs https: it would be read on the way")
        return self

    def reveal_secrets(self) -> tuple[str, ...]:
        """To be masked."""
        return tuple(one.get_secret_value() for one in (self.password, self.token) if one)


def _read_schema_id(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-\w{12}", value):
        return UUID(value)
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError("must be `auto`, a registry's number, or a GUID")


SchemaKey = Annotated[int | UUID | Literal["auto"], BeforeValidator(_read_schema_id)]


class SchemaFormat(Section):
    """A format with a schema, and where its schemas are."""

    registry: Label | None = Field(default=None, description="A name under `registries`.")
    schema_file: LocalPath | None = Field(
        default=None,
        validation_alias="schema",
        serialization_alias="schema",
        description="A file with the schema, instead of a registry.",
    )
    schema_id: SchemaKey = Field(
        default="auto",
        description="Of what is rebuilt: `auto`, that of the messages beside the loss, or a number "
        "(or GUID) of the registry. With `schema`: the number of this file; messages that name "
        "another are not decoded.",
    )
    message: Text | None = Field(
        default=None,
        description="Protobuf: the message's full name, where the file has several; without it "
        "that of the messages in the log.",
    )
    spaced: bool = Field(
        default=False,
        description='JSON Schema: written as Python\'s `json.dumps` does, `{"a": 1}` with `\\u` '
        'escapes; else `{"a":1}`.',
    )

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.registry is None) == (self.schema_file is None):
            raise ValueError("must have `registry` or `schema`, one of them")
        return self


class Encoded(SchemaFormat):
    """A value or key in a format with a schema, made from the row's columns."""

    columns: Names | None = Field(
        default=None, description="Columns that are the fields, each of its own name."
    )
    sql: Text | None = Field(
        default=None,
        description="An SQL expression: a `named_struct(...)` of the fields, or, where the schema "
        "is no record, its value.",
    )
    subject: Text | None = Field(
        default=None,
        description="Under which the registry has the versions; without it `TOPIC-value` or "
        "`TOPIC-key`.",
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if (self.columns is None) == (self.sql is None):
            raise ValueError("must have `columns` or `sql`, one of them")
        return self


class Formats(Section):
    """The keys `avro`, `protobuf` and `json_schema` of a value or key that is made."""

    avro: Encoded | None = Field(
        default=None, description="Avro, with a schema: [formats](formats.md)."
    )
    protobuf: Encoded | None = Field(
        default=None, description="Protobuf, with a schema: [formats](formats.md)."
    )
    json_schema: Encoded | None = Field(
        default=None, description="JSON framed with the id of its schema: [formats](formats.md)."
    )

    @property
    def encoded(self) -> tuple[str, Encoded] | None:
        """The format's name, and what is said of it; None for plain bytes."""
        for name in KINDS:
            if (found := getattr(self, name)) is not None:
                return name, found
        return None


class ReadFormat(Section):
    """The format of a key or value that is only read."""

    avro: SchemaFormat | None = Field(default=None, description="Avro, with a schema.")
    protobuf: SchemaFormat | None = Field(default=None, description="Protobuf, with a schema.")
    json_schema: SchemaFormat | None = Field(
        default=None, description="JSON framed with the id of its schema."
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if [self.avro, self.protobuf, self.json_schema].count(None) != len(KINDS) - 1:
            raise ValueError("must be one of {avro: ...}, {protobuf: ...} and {json_schema: ...}")
        return self

    @property
    def named(self) -> tuple[str, SchemaFormat]:
        """The format's name, and what is said of it."""
        (found,) = ((name, one) for name in KINDS if (one := getattr(self, name)) is not None)
        return found


class ReadFormats(Section):
    """Formats of messages that are read: filters, masks, `archive peek`."""

    key: ReadFormat | None = Field(default=None, description="Of the keys.")
    value: ReadFormat | None = Field(default=None, description="Of the values.")


Part = Literal["key", "value"]


class _Made(Protocol):
    """How messages are made from rows."""

    @property
    def key(self) -> Any: ...

    @property
    def value(self) -> Any: ...


def find_formats(
    made: _Made | None, read: ReadFormats | None
) -> dict[Part, tuple[str, SchemaFormat]]:
    """The parts of messages that have a schema: the format's name, and what is said of it.

    Raises:
        ValueError: both say it.
    """
    found: dict[Part, tuple[str, SchemaFormat]] = {}
    parts: tuple[Part, ...] = ("key", "value")
    for part in parts:
        own = None if made is None else getattr(made, part)
        said: ReadFormat | None = None if read is None else getattr(read, part)
        if own is not None and said is not None:
            raise ValueError(f"`formats.{part}` does not go with `source`, which says it")
        if own is not None and own.encoded:
            found[part] = own.encoded
        elif said is not None:
            found[part] = said.named
    return found
