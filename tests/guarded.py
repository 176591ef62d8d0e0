"""A broker that asks an authorizer, for tests about permissions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.sandbox.embedded import EmbeddedKafka


@contextmanager
def start_guarded(folder: Path) -> Iterator[Admin]:
    """Everybody may do what nobody has forbidden."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedKafka.start(folder / "kafka", properties=properties) as kafka:
        yield make_admin({"bootstrap.servers": kafka.bootstrap})


def deny(admin: Admin, kind: ResourceType, name: str, operation: AclOperation) -> None:
    for verb, permission in (
        (AclOperation.ALL, AclPermissionType.ALLOW),
        (operation, AclPermissionType.DENY),
    ):
        binding = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", verb, permission
        )
        for future in admin.create_acls([binding]).values():
            future.result(90)


def allow_all(admin: Admin, kind: ResourceType, name: str) -> None:
    """Takes the rules about a resource away."""
    anyone: Any = None  # the client's types do not know that a filter may leave it open
    every = AclBindingFilter(
        kind,
        name,
        ResourcePatternType.LITERAL,
        anyone,
        anyone,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in admin.delete_acls([every]).values():
        future.result(90)
