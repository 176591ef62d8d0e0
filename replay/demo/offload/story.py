"""The story of a full disk: what nobody has read moves into an archive, its space is freed, the
consumers go on with what is fresh, and at night the archive is put back. Every command is shown and
really run.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rich.console import Console

from backlog.clock import utc_now
from backlog.kafka.log_dirs import BrokerLogDirs
from backlog.ledger import open_ledger
from backlog.numbers import format_bytes
from replay.demo.expand.shop import ending_consumers
from replay.demo.offload.audit import Audit, count_handled
from replay.demo.offload.shop import (
    CONFIG,
    GROUP,
    HANDLED,
    TOPIC,
    Orders,
    Size,
    make_topic,
    read_disk,
    render_configuration,
)
from replay.demo.reading import await_handled
from replay.demo.stage import (
    Stage,
    ending_on_sigterm,
    find_recovery,
    print_end,
    print_opening,
    tell_progress,
    write_report,
)
from sandbox.embedded import EmbeddedKafka


def tell_story(console: Console, size: Size | None = None, report: Path | None = None) -> Audit:
    """Plays the whole story in a temporary directory that is gone at the end, as is every process.

    Args:
        report: where the incident report of the offload is kept.

    Raises:
        EmbeddedError: this machine does not let us make a small disk.
        BacklogError: a part of it failed.
    """
    size, started = size or Size(), time.monotonic()
    print_opening(
        console,
        "demo offload",
        "The brokers' disk fills faster than anybody reads. [bold]backlogctl[/] moves what is "
        "unread into an archive, frees its space, lets the consumers go on with what is fresh, "
        "and at night puts the archive back, each message once. All of it is real.",
    )
    with (
        ending_on_sigterm(),
        tempfile.TemporaryDirectory(prefix="backlogctl-demo-") as name,
        EmbeddedKafka.start(
            Path(name) / "kafka", progress=tell_progress(console), disk_bytes=size.disk
        ) as kafka,
        ending_consumers(Path(name), kafka.bootstrap),
    ):
        stage = Stage(console, Path(name), {"SHOP_KAFKA": kafka.bootstrap})
        audit = _play(stage, Path(name), kafka.bootstrap, size, report)
    told = "Now yours: docs/runbook-offload.md goes through it step by step."
    print_end(console, told, audit, time.monotonic() - started)
    return audit


def _play(stage: Stage, directory: Path, bootstrap: str, size: Size, report: Path | None) -> Audit:
    orders = Orders(bootstrap, size)
    before = _fill(stage, directory, bootstrap, size, orders)
    with orders:
        offloaded = _offload(stage, directory)
        after = read_disk(bootstrap)
        _show_disk(stage, before, after)
        _put_back(stage, directory, size)
    _await_handled(bootstrap, size)
    audit = _audit(directory, orders.published, offloaded, (before, after))
    stage.open_chapter("Was every order handled, and none twice?")
    stage.tell(
        f"{audit.published:,} orders were published, {audit.archived:,} of them went by way of the "
        f"archive. The consumers' own logs have {audit.handled:,} of them."
    )
    write_report(stage, offloaded, report)
    return audit


def _fill(
    stage: Stage, directory: Path, bootstrap: str, size: Size, orders: Orders
) -> BrokerLogDirs:
    stage.open_chapter(
        f"A broker with a disk of {format_bytes(size.disk)}, and orders that fill it"
    )
    (directory / CONFIG).write_text(render_configuration(size, utc_now(), slow=True))
    make_topic(bootstrap, size)
    # The group's first commit, so that it is known where it stands.
    stage.run("consumers", "start", TOPIC, quiet=True)
    _await_handled(bootstrap, size)
    orders.fill_disk()
    disk = read_disk(bootstrap)
    stage.tell(
        f"{orders.published:,} orders of about {format_bytes(size.padding)} came at once: "
        f"{_say_used(disk)}.\n{size.arriving:,} more come each second, and the consumers' "
        f"database is ill: they handle {size.slow * size.partitions:,} a second."
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


def _put_back(stage: Stage, directory: Path, size: Size) -> None:
    stage.open_chapter("In the evening the database is repaired")
    (directory / CONFIG).write_text(render_configuration(size, utc_now(), slow=False))
    stage.run("consumers", "stop", TOPIC, quiet=True)
    stage.run("consumers", "start", TOPIC, quiet=True)
    stage.open_chapter("At night: the archive is put back, each message once")
    stage.tell(
        "The offloaded range is a gap that waits in its archive. In Airflow the nightly backfill "
        "does what\nthese commands do."
    )
    stage.run("gaps")
    stage.run("plan", "rebuild", TOPIC)
    recovery_id = find_recovery(directory)
    stage.run("approve", recovery_id, "--by", "demo")
    stage.run("run", recovery_id)


def _await_handled(bootstrap: str, size: Size) -> None:
    await_handled({"bootstrap.servers": bootstrap}, TOPIC, GROUP, size.partitions, slack=1)


def _show_disk(stage: Stage, before: BrokerLogDirs, after: BrokerLogDirs) -> None:
    stage.tell(f"Before: {_say_used(before)}. Now: {_say_used(after)}.")


def _say_used(disk: BrokerLogDirs) -> str:
    total, usable = disk.total_bytes or 0, disk.usable_bytes or 0
    return f"{format_bytes(total - usable)} of {format_bytes(total)} are used"


def _audit(
    directory: Path, published: int, offloaded: str, disks: tuple[BrokerLogDirs, BrokerLogDirs]
) -> Audit:
    handled = count_handled(directory / HANDLED)
    with open_ledger(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        archived = ledger.archives.get(offloaded).messages
    used = [(disk.total_bytes or 0) - (disk.usable_bytes or 0) for disk in disks]
    return Audit(
        published=published,
        handled=len(handled),
        twice=sum(1 for count in handled.values() if count > 1),
        missing=sum(1 for number in range(1, published + 1) if number not in handled),
        archived=archived,
        used_before=used[0],
        used_after=used[1],
    )
