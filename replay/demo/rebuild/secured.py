"""The story on a cluster with logins and rules: the user that backlogctl is there."""

from __future__ import annotations

import secrets
from pathlib import Path

from backlog.config import load_config
from backlog.kafka.clients import Properties, make_admin
from backlog.kafka.rights import make_bindings
from replay.around.rights import list_rights
from replay.demo.stage import Stage
from replay.kinds import KINDS
from sandbox.embedded import EmbeddedKafka
from sandbox.secured import add_rules, add_user

USER = "backlogctl"


def make_login(kafka: EmbeddedKafka) -> dict[str, str]:
    """What the configuration refers to: nothing on a broker without logins."""
    if kafka.security is None:
        return {}
    password = secrets.token_urlsafe(18)
    add_user(make_admin(kafka.client_properties), USER, password)
    return {"SHOP_KAFKA_PASSWORD": password, "SHOP_KAFKA_CA": str(kafka.security.ca)}


def grant_rights(stage: Stage, directory: Path, client: Properties) -> None:
    """What `backlogctl acl` prints is granted, and nothing else."""
    stage.open_chapter("A user with no more rights than it needs")
    stage.tell(
        "The cluster wants a login over TLS, and allows nobody what no rule allows. backlogctl "
        f"logs in as [bold]{USER}[/];\nwho administers the cluster grants it these lines."
    )
    stage.run("acl", "rebuild", "orders")
    placeholders = {
        "SHOP_KAFKA": "unused:1",
        "SHOP_KAFKA_PASSWORD": "x",
        "SHOP_KAFKA_CA": "/dev/null",
    }
    config = load_config(directory / "backlog.yaml", placeholders)
    rights = list_rights(KINDS, "rebuild", config, config.stream("orders"))
    add_rules(make_admin(client), make_bindings(rights, f"User:{USER}"))
