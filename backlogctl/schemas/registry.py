"""Schemas as a registry or a file has them. A registry is read, and never written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from backlogctl.config import SchemaFormat, SchemaRegistry
from backlogctl.errors import BacklogError, ConfigurationError

_TIMEOUT_SECONDS, _RETRIES = 15, 3
_TYPES = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}


class RegistryFailure(BacklogError):
    """A schema registry did not answer, or has not what was asked for."""

    code = "registry"


class UnknownSchema(RegistryFailure):
    """It answers, and has no schema of this id and format."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """A schema that messages were written with.

    Attributes:
        kind: `avro`, `protobuf` or `json_schema`.
        text: as it was registered; of Protobuf the source, or base64 of its descriptor.
        references: names and texts of those that it refers to, each behind what it needs itself.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class RegistryReader:
    """Reads one registry, each schema once."""

    def __init__(self, name: str, section: SchemaRegistry) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._subject = f"registry {name}"
        conf: dict[str, Any] = {
            "url": section.url,
            "timeout": _TIMEOUT_SECONDS,
            "max.retries": _RETRIES,
        }
        if section.user is not None and section.password is not None:
            conf["basic.auth.user.info"] = f"{section.user}:{section.password.get_secret_value()}"
        if section.token is not None:
            conf["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            conf["bearer.auth.token"] = section.token.get_secret_value()
            conf["bearer.auth.logical.cluster"] = conf["bearer.auth.identity.pool.id"] = ""
        if section.ca is not None:
            conf["ssl.ca.location"] = str(section.ca)
        # Of this client nothing is called but what reads.
        try:
            self._client = SchemaRegistryClient.new_client(conf)
        except OSError as error:
            raise ConfigurationError(
                f"{section.ca} is no file of certificates ({type(error).__name__})",
                subject=f"registries.{name}.ca",
            ) from None
        self._known: dict[int | UUID, WriterSchema] = {}

    def read_schema(self, schema_id: int | UUID, kind: str) -> WriterSchema:
        """A schema with all that it refers to.

        Raises:
            RegistryFailure: it cannot be had, or is of another format.
        """
        if (known := self._known.get(schema_id)) is not None:
            return known
        with self._asking(f"read schema {schema_id}"):
            if isinstance(schema_id, UUID):
                found = self._client.get_schema_by_guid(str(schema_id))
            else:
                found = self._client.get_schema(schema_id)
            if not isinstance(found.schema_str, str) or not found.schema_str:
                raise TypeError("no text of a schema")
        its = found.schema_type or "AVRO"
        if its != _TYPES[kind]:
            raise UnknownSchema(
                f"schema {schema_id} is {its}, and the stream says {kind}",
                subject=self._subject,
                hint="correct the format in `message`",
            )
        references: dict[str, str] = {}
        self._follow(found, references)
        made = WriterSchema(kind, found.schema_str, tuple(references.items()))
        self._known[schema_id] = made
        return made

    def list_older(self, subject: str, schema_id: int | UUID) -> tuple[int, ...] | None:
        """Ids of the subject's versions before that of the schema, deleted ones too; None where
        the subject is not there, has not this schema, or lacks versions before it."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        with self._asking(f"list the versions of {subject}"):
            try:
                versions = self._client.get_versions(subject, deleted=True)
                found = [self._client.get_version(subject, one, True) for one in versions]
            except SchemaRegistryError as error:
                if error.http_status_code == 404:
                    return None
                raise
        names = [{one.schema_id, UUID(one.guid) if one.guid else None} for one in found]
        at = next((n for n, these in enumerate(names) if schema_id in these), None)
        # Versions are numbered from 1 on: a number that is missing was deleted for good.
        if at is None or versions[at] != at + 1:
            return None
        return tuple(one.schema_id for one in found[:at] if one.schema_id is not None)

    def _follow(self, schema: Any, into: dict[str, str]) -> None:
        for one in schema.references or ():
            if one.name in into:
                continue
            with self._asking(f"read {one.subject}, version {one.version}"):
                found = self._client.get_version(one.subject, one.version, True).schema
            self._follow(found, into)
            into[one.name] = found.schema_str or ""

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        from confluent_kafka.schema_registry import SchemaRegistryError

        # The library hands on the errors of its HTTP client.
        try:
            yield
        except SchemaRegistryError as error:
            kind = UnknownSchema if error.http_status_code == 404 else RegistryFailure
            raise kind(
                f"could not {doing}: {error.error_message} (HTTP {error.http_status_code})",
                subject=self._subject,
                hint="check its URL and login, and that it is the producers' registry",
                retryable=error.http_status_code >= 500,
            ) from None
        except (OSError, _find_transport_error()) as error:
            raise RegistryFailure(
                f"could not {doing}: it does not answer ({type(error).__name__})",
                subject=self._subject,
                hint="check its URL, and that this machine reaches it",
                retryable=True,
            ) from None
        # A page for logins, or a proxy: the client takes what comes for a registry's.
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise RegistryFailure(
                f"could not {doing}: what answers is no schema registry ({type(error).__name__})",
                subject=self._subject,
                hint="check its URL: of Apicurio it ends with /apis/ccompat/v7",
            ) from None


def _find_transport_error() -> type[Exception]:
    from httpx2 import HTTPError

    return HTTPError


@dataclass(slots=True)
class SchemaStore:
    """Where the schemas of one stream's keys or values are looked up."""

    name: str
    said: SchemaFormat
    registries: Mapping[str, SchemaRegistry]
    _registry: RegistryReader | None = field(default=None, init=False)

    def read_schema(self, schema_id: int | UUID) -> WriterSchema:
        """The schema of this id; the file's, where one is configured: of any id, unless
        `schema_id` says which is its own.

        Raises:
            RegistryFailure, ConfigurationError.
        """
        if self.said.schema_file is not None:
            if self.said.schema_id not in ("auto", schema_id):
                raise UnknownSchema(
                    f"schema {schema_id} is not this file's, which is {self.said.schema_id}",
                    subject=str(self.said.schema_file),
                )
            return WriterSchema(self.name, _read_file(self.said.schema_file))
        return self.open().read_schema(schema_id, self.name)

    def open(self) -> RegistryReader:
        """The registry that the configuration names."""
        if self._registry is None:
            name = self.said.registry
            assert name is not None
            self._registry = RegistryReader(name, self.registries[name])
        return self._registry


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the schema cannot be read: {type(error).__name__}",
            subject=str(path),
            hint="`schema` names a text file",
        ) from None
