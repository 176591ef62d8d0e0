"""Streams that wait for a test: the DAGs know them from Airflow's start on."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from backlogctl.config import load_config
from backlogctl.fanout.launchers import Fleet, Role
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.opening import open_workspace
from tests.kit.kafka import wait_until
from tests.kit.shop import PARTITIONS, Shop
from tests.replay.expand.world import CONSUMER, FACTOR, REPLICAS, World
from tests.replay.expand.world import PARTITIONS as EXPAND_PARTITIONS
from tests.spark_backfill.world import FIELDS

NIGHT_ZONE, MINUTE_ZONE = "Asia/Shanghai", "Asia/Tokyo"


@dataclass(frozen=True)
class Kind:
    """Streams that are alike.

    Attributes:
        count: how many tests can have one.
        settings: keys of the stream; `zone` and `opens` make its off-peak window.
        source: it can be rebuilt.
        consumers: it can be expanded.
        opens: hours from now to when its off-peak window opens; it is open for four.
    """

    name: str
    count: int
    settings: dict[str, Any] = field(default_factory=dict)
    source: bool = True
    consumers: bool = False
    zone: str = ""
    opens: int = -1

    @property
    def partitions(self) -> int:
        return PARTITIONS if self.source else EXPAND_PARTITIONS


KINDS = (
    Kind("long", 2, {"approval": "named", "limits": {"messages_per_second": 2}}),
    Kind("asked", 13, {"approval": "named"}),
    # Of half a minute: its task is killed in the middle.
    Kind("second", 1, {"approval": "second_person", "limits": {"messages_per_second": 3}}),
    Kind("night", 2, {"approval": "auto"}, zone=NIGHT_ZONE),
    # One night's streams: one goes on by itself, one is asked about, one has no table, one waits.
    Kind("night-asked", 1, {"approval": "named"}, zone=NIGHT_ZONE),
    Kind("night-broken", 1, {"approval": "auto"}, zone=NIGHT_ZONE),
    Kind("night-later", 1, {"approval": "auto"}, zone=NIGHT_ZONE, opens=8),
    # Of 90 seconds: its window closes in the middle, however soon it began.
    Kind("minute", 1, {"approval": "auto", "limits": {"messages_per_second": 1}}, zone=MINUTE_ZONE),
    Kind("expand", 2, {"approval": "named"}, source=False, consumers=True),
    Kind("offload", 3, {"approval": "auto"}, source=False, consumers=True),
    Kind("audited", 1, {"audits": ["producers", "consumed"]}),
)


@dataclass
class Slot:
    """One stream of many in the configuration, which was written before Airflow was started."""

    stream: str = "orders"
    config: Path = Path("backlog.yaml")

    def write_config(self, **extra: Any) -> None:
        """It is there."""
        assert not extra

    def open(self) -> Workspace:
        return open_workspace(load_config(self.config, dict(os.environ)))


@dataclass
class SlotShop(Slot, Shop):
    """A shop of a slot's stream."""

    def await_progress(self) -> None:
        """Waits until more is put back than now."""
        sent = len(self.read_injected())
        wait_until(lambda: len(self.read_injected()) > sent, 240, what="it goes on")


@dataclass
class SlotWorld(Slot, World):
    """A world of a slot's stream."""

    def list_processes(self, *, without: tuple[Role, ...] = ()) -> dict[int, str]:
        """Consumers by their environment, and relays by their log: Airflow started them."""
        found = super().list_processes(without=without)
        workspace = self.open()
        logs = {
            str(workspace.staging_of(recovery.id) / "relay.log")
            for recovery in workspace.ledger.recoveries.list(stream=self.stream)
        }
        mark = f"ORDER_LOG={self.log}".encode()
        for path in Path("/proc").iterdir():
            if not path.name.isdigit() or int(path.name) == os.getpid():
                continue
            try:
                words = (path / "environ").read_bytes().split(b"\0")
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                relays = "relay.worker" in command and str((path / "fd/2").readlink()) in logs
            except OSError:
                continue
            roles = [f"BACKLOG_ROLE={role.value}".encode() for role in without]
            if relays or (mark in words and not any(role in words for role in roles)):
                found[int(path.name)] = command
        return found

    def end(self) -> None:
        """Ends its consumers, those that a recovery has started too."""
        super().end()
        launcher = self.launcher
        original = self.fleet(Role.ORIGINAL)
        for place in sorted(original.directory.parent.glob("*")):
            role = Role.ORIGINAL if place == original.directory else Role.RECOVERY
            recovery_id = "" if role is Role.ORIGINAL else place.name
            launcher.stop(
                Fleet(self.stream, role, self.topic, self.group, "", place, recovery_id),
                lambda: None,
            )


SlotWorldT = TypeVar("SlotWorldT", bound=SlotWorld)


class Slots:
    """All streams of the session: their topics, groups, tables and the file that names them."""

    def __init__(self, directory: Path, bootstrap: str, mark: str, ledger: str = "") -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self.ledger = ledger or f"sqlite:///{directory / 'ledger.db'}"
        self._mark = mark
        self._free = {
            kind.name: [f"{kind.name}-{n}" for n in range(1, kind.count + 1)] for kind in KINDS
        }

    @property
    def config(self) -> Path:
        return self.directory / "backlog.yaml"

    @property
    def topics(self) -> Iterator[tuple[str, int]]:
        """Topics, with how many partitions each has."""
        for kind in KINDS:
            for name in self._free[kind.name]:
                yield self.name_topic(name), kind.partitions

    def name_topic(self, stream: str) -> str:
        return f"{stream}-{self._mark}"

    def name_group(self, stream: str) -> str:
        return f"group-{stream}-{self._mark}"

    def place(self, stream: str) -> Path:
        found = self.directory / stream
        found.mkdir(exist_ok=True)
        return found

    def take(self, kind: str) -> str:
        """The name of a stream that no other test has."""
        assert self._free[kind], f"no stream of kind {kind} is left: give it a higher count"
        return self._free[kind].pop(0)

    def take_shop(self, kind: str = "named") -> SlotShop:
        """A shop that has lost its orders."""
        stream = self.take(kind)
        shop = SlotShop(
            directory=self.place(stream),
            bootstrap=self.bootstrap,
            topic=self.name_topic(stream),
            group=self.name_group(stream),
            url=self._name_database(stream),
            ledger=self.ledger,
            kafka_ledger=f"recovery-ledger-{self._mark}",
            stream=stream,
            config=self.config,
        )
        shop.lose_orders()
        return shop

    def take_world(
        self,
        patch: Any,
        kind: str = "expand",
        make: type[SlotWorldT] = SlotWorld,  # type: ignore[assignment]
    ) -> SlotWorldT:
        """A backlog and slow consumers that run."""
        stream = self.take(kind)
        patch.setenv("BACKLOG_CONFIG", str(self.config))  # of the commands that it starts
        world = make(
            directory=self.place(stream),
            bootstrap=self.bootstrap,
            topic=self.name_topic(stream),
            group=self.name_group(stream),
            patch=patch,
            stream=stream,
            config=self.config,
        )
        world.publish(1_600)
        world.start_originals()
        return world

    def write_config(self) -> None:
        """Writes backlog.yaml. JSON is YAML."""
        streams = {
            name: self._describe(kind, name) for kind in KINDS for name in self._free[kind.name]
        }
        document = {
            "ledger": self.ledger,
            "staging": {"dir": str(self.directory / "staging")},
            "kafka_ledger": {
                "topic": f"recovery-ledger-{self._mark}",
                "transactional_prefix": f"backlog-{self._mark}",
            },
            "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "2"}},
            "clusters": {
                "main": {"bootstrap.servers": self.bootstrap},
                # Nobody's: one that is free now may be another test's soon.
                "gone": {"bootstrap.servers": "127.0.0.1:1"},
            },
            "sources": {
                name: {"url": self._name_database(name)}
                for name, stream in streams.items()
                if "source" in stream
            },
            "streams": streams,
        }
        self.config.write_text(json.dumps(document, indent=1))

    def change_stream(self, stream: str, **changes: Any) -> None:
        """Changes keys of a stream in the file, all at once for whoever reads it."""
        document = json.loads(self.config.read_text())
        document["streams"][stream] |= changes
        draft = self.config.with_suffix(".draft")
        draft.write_text(json.dumps(document, indent=1))
        draft.replace(self.config)

    def _name_database(self, stream: str) -> str:
        return f"sqlite:///{self.place(stream) / 'shop.db'}"

    def _describe(self, kind: Kind, name: str) -> dict[str, Any]:
        described: dict[str, Any] = {
            "cluster": "main",
            "topic": self.name_topic(name),
            "group": self.name_group(name),
            **kind.settings,
        }
        if kind.source:
            described["source"] = {
                "database": name,
                "table": "orders",
                "primary_key": ["order_id"],
                "time_column": "updated_at",
                "mutable": False,
                "message": {"key": "order_id", "value": {"json": FIELDS}},
                "identity": {"row": "order_id", "message": "key"},
                "consumed": {"database": name, "table": "processed", "column": "order_id"},
                "stale": "restate",
            }
        if kind.zone:
            opens = datetime.now(ZoneInfo(kind.zone)) + timedelta(hours=kind.opens)
            described["off_peak"] = {
                "from": f"{opens:%H:00}",
                "to": f"{opens + timedelta(hours=4):%H:00}",
                "timezone": kind.zone,
            }
        if kind.consumers:
            described["consumers"] = {
                "launcher": "process",
                "command": [sys.executable, str(CONSUMER)],
                "replicas": REPLICAS,
                "environment": {"ORDER_LOG": str(self.place(name) / "orders.log")},
                "stop_within": "60s",
            }
            described["expand"] = {"factor": FACTOR, "order": "key", "max_lag_at_cutover": 50}
        return described


def drop_table(shop: SlotShop) -> None:
    """Its source is broken."""
    with sqlite3.connect(shop.url.removeprefix("sqlite:///")) as connection:
        connection.execute("DROP TABLE orders")
