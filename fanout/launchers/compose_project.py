"""The compose project of a recovery: one service, made from the stream's own as Compose reads it.

Compose cannot run one service with two sets of variables. So a recovery's consumers are a project
of their own, whose file is given to Compose by stdin: it holds the variables of the service, which
may be secret, and is kept nowhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from backlogctl.config import Compose
from backlogctl.config.consumers import fill_in
from backlogctl.errors import BacklogError, Refused
from backlogctl.fanout.launchers.interface import Fleet

ComposeDocument = dict[str, Any]

# What may be there once, is another service's, or says when this one is started.
_LEFT_OUT = (
    *("container_name", "ports", "mac_address", "depends_on", "scale", "profiles"),
    *("build", "pull_policy", "develop"),
)
# What other services of the file would have to be there for.
_LINKS = ("links", "volumes_from")
_SHARED = ("network_mode", "ipc", "pid")


def parse_project(text: str, settings: Compose) -> ComposeDocument:
    """What `docker compose config --format json` prints: all files as one, with all defaults.
    Raises BacklogError: it is no such thing, or has no such service.
    """
    try:
        document: ComposeDocument = json.loads(text)
        _ = document["name"], document["services"][settings.service]
    except (ValueError, KeyError, TypeError) as error:
        raise BacklogError(
            "`docker compose config` did not print a project with a name and this service",
            subject=f"compose service {settings.service}",
            hint="run it by hand; Compose 2.21 or newer is needed",
        ) from error
    return document


def name_recovery_project(document: ComposeDocument, fleet: Fleet) -> str:
    """The same after a crash: `PROJECT-recovery-R`."""
    number = re.sub(r"[^a-z0-9_-]", "-", fleet.recovery_id.lower())
    return f"{document['name']}-recovery-{number}"


def make_recovery_project(
    document: ComposeDocument, settings: Compose, fleet: Fleet
) -> ComposeDocument:
    """The file of the recovery's project: the service with other variables, and what it uses.

    Networks and named volumes are those of the stream's own project: they are joined, and never
    made or removed. Of each network only the membership is kept: an address or alias is another's.

    Raises:
        Refused: the service needs others to be in its project.
    """
    service = dict(document["services"][settings.service])
    _refuse_links(service, settings)
    if "build" in service:
        service.setdefault("image", f"{document['name']}-{settings.service}")
    for key in _LEFT_OUT:
        service.pop(key, None)
    service["pull_policy"] = "missing"  # the image that runs, not a newer one
    values = fill_in(settings.variables.values(), fleet.placeholders)
    # A `$` is doubled as in all that Compose has printed: it reads the file as any other.
    doubled = [value.replace("$", "$$") for value in values]
    told = dict(zip(settings.variables, doubled, strict=True))
    service["environment"] = {**(service.get("environment") or {}), **told}
    own = {"backlogctl.recovery": fleet.recovery_id, "backlogctl.stream": fleet.stream}
    service["labels"] = {**(service.get("labels") or {}), **own}
    used = {"networks": service.get("networks") or {}, "volumes": _list_volumes(service)}
    if used["networks"]:
        service["networks"] = dict.fromkeys(used["networks"])
    whole: ComposeDocument = {
        "name": name_recovery_project(document, fleet),
        "services": {settings.service: service},
    }
    for kind, keys in used.items():
        known = document.get(kind) or {}
        if keys:
            whole[kind] = {key: _join(known.get(key) or {}, key) for key in keys}
    for kind in ("secrets", "configs"):  # files or variables, read anew
        if document.get(kind):
            whole[kind] = document[kind]
    return whole


def describe_differences(document: ComposeDocument, settings: Compose) -> list[str]:
    """Sentences for a plan: what the recovery's containers share, or do not have."""
    service = document["services"][settings.service]
    told: list[str] = []
    if service.get("ports") or service.get("container_name"):
        told.append(
            f"the recovery's containers of service {settings.service} have neither its published "
            "ports nor its container name"
        )
    named = _list_volumes(service)
    if named:
        told.append(
            f"the recovery's containers share the service's volumes: {', '.join(named)}; what it "
            "keeps there must bear more of them"
        )
    unknown = sorted(set(settings.variables) - set(service.get("environment") or {}))
    if unknown:
        told.append(
            f"service {settings.service} has no variable {', '.join(unknown)} of its own: whether "
            "its consumers read what the recovery's are told is not known; "
            "`plan expand --try` tells"
        )
    return told


def _list_volumes(service: Mapping[str, Any]) -> list[str]:
    """The named ones."""
    mounts = service.get("volumes") or ()
    return sorted(
        {one["source"] for one in mounts if one["type"] == "volume" and one.get("source")}
    )


def _join(one: Mapping[str, Any], key: str) -> ComposeDocument:
    return {"name": one.get("name", key), "external": True}


def _refuse_links(service: Mapping[str, Any], settings: Compose) -> None:
    found = [key for key in _LINKS if service.get(key)]
    found += [key for key in _SHARED if str(service.get(key, "")).startswith("service:")]
    if found:
        raise Refused(
            f"it has `{'`, `'.join(found)}`, which ties it to other services: the recovery's "
            "containers are in a project of their own, without those",
            subject=f"compose service {settings.service}",
            hint="use networks in their place, or `launcher: command`; nothing was changed",
        )
