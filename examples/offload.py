"""The story of a full disk: what nobody has read moves into an archive, its space is freed, the
consumers go on with what is fresh, and at night the archive is put back.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import KafkaFailure
from backlogctl.formats import format_bytes
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.log_dirs import BrokerLogDirs, read_log_dirs
from backlogctl.ledger import open_ledger
from backlogctl.sandbox.embedded import EmbeddedKafka
from examples.shop import (
    CONFIG,
    GROUP,
    HANDLED,
    TOPIC,
    NewOrders,
    Size,
    ending_consumers,
    render_configuration,
)
from examples.stage import (
    Audit,
    Stage,
    await_handled,
    count_orders,
    find_recovery,
    tell_whole,
    write_report,
)

_LOOK_EACH = 1_000  # orders
# Small chunks: on a busy machine one that is aborted and sent again takes its space twice.
_LIMITS = "    limits: {messages_per_second: 5000}\n"


@dataclass(frozen=True, slots=True)
class DiskSize(Size):
    """How large the story is.

    Attributes:
        disk: bytes that the broker has.
        filled: the share of it that is used when somebody notices.
        spare: the share that later orders may take, however long the story lasts: on a busy machine
            that is minutes, and the archive must find room again when it is put back.
        padding: bytes of each order that no compression makes smaller.
        slow: orders a second that one consumer handles while its database is ill.
        rate: the same once that is repaired.
    """

    rate: int = 10_000
    slow: int = 15
    arriving: int = 60
    disk: int = 128 * 2**20
    filled: float = 0.5
    spare: float = 0.1
    padding: int = 2_500


def make_topic(bootstrap: str, size: DiskSize) -> None:
    """Small segments: a broker frees whole ones only."""
    create_topic(
        {"bootstrap.servers": bootstrap},
        TOPIC,
        partitions=size.partitions,
        replication=1,
        config={"segment.bytes": str(2**21), "retention.ms": "-1"},
    )


def make_orders(bootstrap: str, size: DiskSize) -> NewOrders:
    """Large orders of one customer, numbered from 1."""

    def make(index: int) -> tuple[bytes, bytes]:
        order_id = f"o-{index + 1:08}"
        note = secrets.token_urlsafe(size.padding * 3 // 4)
        value = {"order_id": order_id, "customer": "c-000001", "number": index + 1, "note": note}
        return order_id.encode(), json.dumps(value, separators=(",", ":")).encode()

    arrivals = int(size.spare * size.disk / size.padding)
    return NewOrders(bootstrap, size, make, arrivals=arrivals)


def fill_disk(orders: NewOrders, bootstrap: str, size: DiskSize) -> BrokerLogDirs:
    """Orders as fast as they go, until the broker's disk is used as far as `filled`."""
    while True:
        orders.publish(_LOOK_EACH)
        orders.flush()
        disk = read_disk(bootstrap)
        if count_used(disk) >= size.filled * size.disk:
            return disk


def read_disk(bootstrap: str) -> BrokerLogDirs:
    """The broker's disk, as it tells itself. Raises KafkaFailure: it does not."""
    found = read_log_dirs({"bootstrap.servers": bootstrap}, TOPIC, Deadline(15.0))
    if not found.brokers or found.brokers[0].usable_bytes is None:
        raise KafkaFailure(
            f"the broker does not tell its disk: {found.reason}", subject=f"cluster {bootstrap}"
        )
    return found.brokers[0]


@dataclass(frozen=True, slots=True)
class OffloadAudit(Audit):
    """What the consumers' own logs say, and the disk before and after; bytes."""

    archived: int
    used_before: int
    used_after: int

    @property
    def passed(self) -> bool:
        """Every order was handled once, some by way of the archive, and space was freed."""
        return self.is_whole and bool(self.archived) and self.used_after < self.used_before


def count_handled(directory: Path) -> Counter[int]:
    """How often each order was handled, of the consumers' logs (`order_consumer`)."""
    found: Counter[int] = Counter()
    for path in directory.glob("*.log"):
        for line in path.read_bytes().splitlines():
            _, _, number = line.split()
            found[int(number)] += 1
    return found


def tell_story(
    console: Console, size: DiskSize | None = None, report: Path | None = None
) -> OffloadAudit:
    """Plays the whole story in a temporary directory that is gone at the end, as is every process.

    Args:
        report: where the incident report of the offload is kept.

    Raises:
        EmbeddedError: this machine does not let us make a small disk.
        BacklogError: a part of it failed.
    """
    wanted = size or DiskSize()

    def play(directory: Path, kafka: EmbeddedKafka) -> OffloadAudit:
        with ending_consumers(directory, kafka.bootstrap):
            stage = Stage(console, directory, {"SHOP_KAFKA": kafka.bootstrap})
            return _play(stage, directory, kafka.bootstrap, wanted, report)

    return tell_whole(
        console,
        "demo offload",
        "The brokers' disk fills faster than anybody reads. [bold]backlogctl[/] moves what is "
        "unread into an archive, frees its space, lets the consumers go on with what is fresh, "
        "and at night puts the archive back, each message once. All of it is real.",
        "Now yours: docs/runbook-offload.md goes through it step by step.",
        play,
        disk_bytes=wanted.disk,
    )


def _play(
    stage: Stage, directory: Path, bootstrap: str, size: DiskSize, report: Path | None
) -> OffloadAudit:
    orders = make_orders(bootstrap, size)
    before = _fill(stage, directory, bootstrap, size, orders)
    with orders:
        offloaded = _offload(stage, directory)
        after = read_disk(bootstrap)
        stage.tell(f"Before: {_say_used(before)}. Now: {_say_used(after)}.")
        _put_back(stage, directory, size, offloaded)
    _await_handled(bootstrap, size)
    audit = _audit(directory, orders.published, offloaded, (before, after))
    stage.open_chapter("Was every order handled, and none twice?")
    stage.tell(
        f"{audit.total:,} orders were published, {audit.archived:,} of them went by way of the "
        f"archive. The consumers' own logs have {audit.handled:,} of them."
    )
    write_report(stage, offloaded, report)
    return audit


def _fill(
    stage: Stage, directory: Path, bootstrap: str, size: DiskSize, orders: NewOrders
) -> BrokerLogDirs:
    stage.open_chapter(
        f"A broker with a disk of {format_bytes(size.disk)}, and orders that fill it"
    )
    (directory / CONFIG).write_text(render_configuration(replace(size, rate=size.slow), utc_now()))
    make_topic(bootstrap, size)
    # The group's first commit, so that it is known where it stands.
    stage.run("consumers", "start", TOPIC, quiet=True)
    _await_handled(bootstrap, size)
    disk = fill_disk(orders, bootstrap, size)
    stage.tell(
        f"{orders.published:,} orders of about {format_bytes(size.padding)} came at once: "
        f"{_say_used(disk)}.\n{size.arriving:,} more come each second for a while, and the "
        f"consumers' database is ill: they handle {size.slow * size.partitions:,} a second."
    )
    return disk


def _offload(stage: Stage, directory: Path) -> str:
    stage.run("status")
    stage.open_chapter("Plan: what would be moved, how much freed, who is stopped?")
    stage.tell("Nothing is changed yet.")
    stage.run("plan", "offload", TOPIC)
    recovery_id = find_recovery(directory)
    stage.open_chapter("Approve, and run: stop, archive, read back, move the group, free, start")
    stage.run("approve", recovery_id, "--by", "demo")
    stage.run("run", recovery_id)
    stage.run("archive", "list")
    return recovery_id


def _put_back(stage: Stage, directory: Path, size: DiskSize, offloaded: str) -> None:
    stage.open_chapter("In the evening the database is repaired")
    (directory / CONFIG).write_text(render_configuration(size, utc_now()) + _LIMITS)
    stage.run("consumers", "stop", TOPIC, quiet=True)
    stage.run("consumers", "start", TOPIC, quiet=True)
    stage.open_chapter("At night: the archive is put back, each message once")
    stage.tell(
        "The offloaded range is a gap that waits in its archive. In Airflow the nightly backfill "
        "does what\nthese commands do."
    )
    stage.run("gaps")
    stage.run("plan", "redrive", TOPIC, "--from", f"archive:{offloaded}")
    recovery_id = find_recovery(directory)
    stage.run("approve", recovery_id, "--by", "demo")
    stage.run("run", recovery_id)


def _await_handled(bootstrap: str, size: DiskSize) -> None:
    await_handled({"bootstrap.servers": bootstrap}, TOPIC, GROUP, size.partitions, slack=1)


def count_used(disk: BrokerLogDirs) -> int:
    return (disk.total_bytes or 0) - (disk.usable_bytes or 0)


def _say_used(disk: BrokerLogDirs) -> str:
    return f"{format_bytes(count_used(disk))} of {format_bytes(disk.total_bytes or 0)} are used"


def _audit(
    directory: Path, published: int, offloaded: str, disks: tuple[BrokerLogDirs, BrokerLogDirs]
) -> OffloadAudit:
    handled = count_handled(directory / HANDLED)
    with open_ledger(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        archived = ledger.archives.get(offloaded).messages
    return OffloadAudit(
        **count_orders(handled, range(1, published + 1)),
        archived=archived,
        used_before=count_used(disks[0]),
        used_after=count_used(disks[1]),
    )
