"""The story on a cluster with logins and rules: the user that backlogctl is there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.config import load_config
from backlogctl.formats import format_duration
from backlogctl.kafka.clients import Properties, make_admin
from backlogctl.kafka.rights import Operation, Resource, Right, make_bindings
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.observe.rights import list_rights
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import add_rules
from examples.issuer import Issuer, make_settings, start_issuer
from examples.lost_orders import (
    AVRO,
    GROUP,
    RETENTION,
    TOPIC,
    TOTAL,
    UNREAD,
    VARIABLES,
    YOUNG,
    Encode,
    Order,
    ShopAudit,
    audit_shop,
    expire_old,
    handle_orders,
    make_orders,
    make_topic,
    publish_orders,
    read_ends,
    render_configuration,
    write_table,
)
from examples.stage import Stage, find_recovery, tell_whole, write_report

if TYPE_CHECKING:
    from examples.avro import AvroShop

USER, SERVICE = "backlogctl", "order-service"
_JOBS = ("rebuild", "watch")
_BROKERS = 3


@dataclass(frozen=True)
class Logins:
    """Who talks to the cluster: the administrator, the shop's service, and backlogctl by what its
    configuration refers to."""

    admin: Properties
    service: Properties
    environment: Mapping[str, str]

    @classmethod
    def make(cls, kafka: EmbeddedKafka, issuer: Issuer | None) -> Logins:
        """With an issuer the service has its tokens, and backlogctl a certificate."""
        admin = kafka.client_properties
        if issuer is None:
            return cls(admin, admin, {"SHOP_KAFKA": kafka.bootstrap})
        rest = {name: value for name, value in admin.items() if not name.startswith("sasl.")}
        own = kafka.mutual_properties(USER)
        environment = {variable: own[name] for variable, name in VARIABLES.items()}
        return cls(admin, {**rest, **issuer.login(SERVICE)}, environment)


@dataclass(frozen=True)
class Orders:
    """Where the orders are rows, and how they are messages."""

    source: str
    encode: Encode
    environment: Mapping[str, str]
    place: str
    message: str

    @classmethod
    def make(cls, directory: Path, avro: AvroShop | None) -> Orders:
        """SQLite and JSON, where they are not MariaDB and Avro."""
        if avro is None:
            return cls(f"sqlite:///{directory / 'shop.db'}", Order.to_json, {}, "", "a message")
        told = "an Avro message, whose schema is in a registry"
        return cls(avro.source, avro.encode, avro.environment, " in MariaDB", told)


def grant_rights(stage: Stage, directory: Path, logins: Logins) -> None:
    """What `backlogctl acl` prints is granted, and nothing else."""
    stage.open_chapter("Users with no more rights than they need")
    stage.tell(
        f"{_BROKERS} brokers, all of it over TLS, and nobody may do what no rule allows. The "
        f"shop's service is\n[bold]{SERVICE}[/] by tokens of an issuer (OAuth), backlogctl is "
        f"[bold]{USER}[/] by a certificate (mTLS).\nWho administers the cluster grants these lines."
    )
    for job in _JOBS:
        stage.run("acl", job, "orders")
    config = load_config(directory / "backlog.yaml", logins.environment)
    admin = make_admin(logins.admin)
    for job in _JOBS:
        rights = list_rights(KINDS, job, config, config.stream("orders"))
        add_rules(admin, make_bindings(rights, f"User:{USER}"))
    topic = (Operation.READ, Operation.WRITE, Operation.DESCRIBE)
    own = [Right(Resource.TOPIC, TOPIC, operation, "its orders") for operation in topic]
    own.append(Right(Resource.GROUP, GROUP, Operation.READ, "its place"))
    add_rules(admin, make_bindings(own, f"User:{SERVICE}"))


# The story: 10,000 orders, a consumer that falls behind, a broker that really deletes, and the
# recovery, with every `backlogctl` command shown and really run.


def tell_story(
    console: Console,
    report: Path | None = None,
    *,
    consumed: bool = False,
    secure: bool = False,
    avro: AvroShop | None = None,
) -> ShopAudit:
    """Plays the whole story in a temporary directory that is gone at the end.

    Args:
        report: where the incident report is kept.
        consumed: the plan may look into the service's own table of what it handled.
        secure: three brokers want logins over TLS and have an authorizer; backlogctl is a user with
            no more rights than it needs.
        avro: the table is in MariaDB, and values are Avro.
    """

    def play(directory: Path, kafka: EmbeddedKafka) -> ShopAudit:
        logins = Logins.make(kafka, issuer)
        shop = Orders.make(directory, avro)
        stage = Stage(console, directory, {**logins.environment, **shop.environment})
        words = AVRO if avro else None
        text = render_configuration(utc_now(), consumed=consumed, secure=secure, words=words)
        (directory / "backlog.yaml").write_text(text)
        make_topic(logins.admin)
        if secure:
            grant_rights(stage, directory, logins)
        lose_orders(stage, directory, logins, shop)
        recovery_id = _recover(stage, directory, consumed)
        audit = _close(stage, directory, logins, shop)
        write_report(stage, recovery_id, report)
        return audit

    with start_issuer() if secure else nullcontext() as issuer:
        return tell_whole(
            console,
            "demo",
            "A topic's retention deleted messages that a consumer group had not read yet.\n"
            "[bold]backlogctl[/] finds exactly those, rebuilds them from the source table,\n"
            "and puts them back once. Everything here is real: Kafka, Spark, the loss, the repair.",
            "Now yours: [bold green]backlogctl init[/] writes a commented backlog.yaml, "
            "[bold green]backlogctl status[/] looks;\n"
            "docs/runbook-rebuild.md goes through it step by step, examples/01-lost-orders is "
            "this shop.",
            play,
            **(secure_brokers(issuer) if issuer else {}),
        )


def secure_brokers(issuer: Issuer) -> dict[str, Any]:
    """Three, that believe the issuer; a topic has three replicas, and needs two to be written."""
    settings = make_settings(issuer)
    safe = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    return {
        **settings,
        "brokers": _BROKERS,
        "heap": "256m",
        "properties": {**settings["properties"], **safe},
    }


def lose_orders(stage: Stage, directory: Path, logins: Logins, shop: Orders) -> None:
    stage.open_chapter("A shop with 10,000 orders")
    orders = make_orders(utc_now())
    old, young = orders[:-YOUNG], orders[-YOUNG:]
    write_table(shop.source, orders)
    publish_orders(logins.service, old, shop.encode)
    ends = read_ends(logins.admin)
    stage.tell(
        f"{TOTAL:,} orders are rows of the table [bold]orders[/]{shop.place}; each is also "
        f"{shop.message}, keyed by its order_id,\nin the topic [bold]{TOPIC}[/] with {len(ends)} "
        "partitions."
    )
    stage.open_chapter("The consumer falls behind")
    stop_at = {number: end - UNREAD[number] for number, end in ends.items()}
    handled = handle_orders(logins.service, directory / "warehouse.db", stop_at=stop_at)
    stage.tell(
        f"The service handled {handled:,} orders, then it stopped. [bold]watch[/] runs beside it "
        "and looks each 30 seconds;\nhere [bold]status[/] does so once. Both note where the group "
        "stands: a hash of the next message's key."
    )
    stage.run("status")
    stage.open_chapter("The broker deletes what nobody has read")
    publish_orders(logins.service, young, shop.encode)
    expire_old(logins.admin, ends)
    hours = format_duration(RETENTION.total_seconds())
    stage.tell(
        f"The topic keeps messages for {hours}: the broker has just deleted those older than "
        "that, read or not."
    )
    stage.run("status")
    stage.run("gaps")


def _recover(stage: Stage, directory: Path, consumed: bool) -> str:
    stage.open_chapter("Plan: which orders were lost, exactly?")
    handled = (
        "what the\nservice's own table says it handled."
        if consumed
        else "what lies\nbefore the message where the group stood. Nobody keeps a list of what "
        "was handled."
    )
    stage.tell(
        f"Spark reads the source table and takes away what is still in the topic, and {handled}\n"
        "Nothing is changed yet."
    )
    stage.run("plan", "rebuild", "orders")
    recovery_id = find_recovery(directory)
    stage.open_chapter("Approve, and put them back")
    stage.tell(
        "A person approves a plan by its hash; the demo does it for itself. [bold]run[/] works in "
        "the off-peak\nwindow only, sends a canary first, keeps to the rate, and reads everything "
        "back at the end."
    )
    stage.run("approve", recovery_id, "--by", "demo")
    stage.run("run", recovery_id)
    stage.run("show", recovery_id)
    return recovery_id


def _close(stage: Stage, directory: Path, logins: Logins, shop: Orders) -> ShopAudit:
    stage.open_chapter("The consumer goes on")
    handled = handle_orders(logins.service, directory / "warehouse.db")
    stage.tell(f"The service is started again, and handles {handled:,} orders.")
    audit = audit_shop(logins.admin, shop.source, directory / "warehouse.db", shop.encode)
    stage.open_chapter("Was every order handled, and none twice?")
    stage.tell(
        f"Source table {audit.total:,} rows · topic, read committed: {audit.in_topic:,} messages, "
        f"{audit.injected:,} of them put back,\n{audit.topic_twice:,} doubled, "
        f"{audit.different:,} different from their row · the service's own table: "
        f"{audit.processed:,} rows"
    )
    return audit
