"""Disks that fill while messages are put back: it waits above the floor, and a broker that is gone
is told, at each point."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backlogctl.kafka.admin import create_topic
from backlogctl.replay.engine import brakes
from backlogctl.replay.injection import steps
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection import verification
from tests.kit.disks import BALLAST, MIB, doing, fill, fill_up, read_usable, resize
from tests.kit.kafka import delete_topic, read_all, wait_until
from tests.kit.shop import PARTITIONS, Shop, call_main
from tests.replay.redrive.world import KEEP

pytestmark = pytest.mark.timeout(600)

COUNT, SIZE = 300, 20_000
COPY = "copy"
# A broker that is gone is told so soon, on a busy machine too.
SOON = 20.0


@pytest.fixture
def make_shop(tmp_path: Path, group: str) -> Callable[[EmbeddedKafka], Shop]:
    """Messages that no codec makes smaller, and a topic for their copies."""

    def make(kafka: EmbeddedKafka) -> Shop:
        properties = kafka.client_properties
        for name in ("orders", COPY):
            create_topic(properties, name, partitions=PARTITIONS, config=KEEP)
        create_topic(properties, BALLAST, partitions=1, config=KEEP)
        shop = Shop(
            directory=tmp_path,
            bootstrap=kafka.bootstrap,
            topic="orders",
            group=group,
            url=f"sqlite:///{tmp_path / 'shop.db'}",
            ledger="sqlite:///ledger.db",
            kafka_ledger="recovery-ledger",
        )
        shop.write_config(source=None)
        fill(properties, "orders", COUNT * SIZE, SIZE)
        return shop

    return make


def plan_copy(shop: Shop) -> dict[str, Any]:
    planned = shop.call(
        "plan", "redrive", "orders", "--from", "log", "--all", "--to", COPY, "--json"
    )
    document: dict[str, Any] = planned.document
    shop.call("approve", document["id"], "--by", "Ada")
    return document


def list_said(shop: Shop, recovery: str) -> list[str]:
    events = shop.open().ledger.events.list(recovery)
    return [event.detail["message"] for event in events if event.action == "said"]


def check_copied_once(shop: Shop) -> None:
    def read(topic: str) -> Counter[bytes | None]:
        return Counter(m.value() for m in read_all(shop.properties, topic, range(PARTITIONS)))

    assert read(COPY) == read("orders")


def test_fault_127_putting_back_waits_above_the_floor_and_goes_on(
    make_shop: Callable[[EmbeddedKafka], Shop], tmp_path: Path
) -> None:
    with EmbeddedKafka.start(tmp_path / "kafka", disk_bytes=160 * MIB) as kafka:
        shop = make_shop(kafka)
        fill(shop.properties, BALLAST, 24 * MIB)
        document = plan_copy(shop)
        recovery, disk = document["id"], document["disk"]
        assert disk["enough"] is None, "what others write meanwhile is not known"
        assert COUNT * SIZE < disk["needed"] < 2 * COUNT * SIZE
        usable = read_usable(shop.properties, COPY)
        shop.write_config(limits={"disk_free": f"{usable - MIB} B"})
        lowest = [usable]

        def make_room() -> None:
            def waits() -> bool:
                lowest.append(read_usable(shop.properties, COPY))
                return any(
                    told.startswith("waiting: the disk") for told in list_said(shop, recovery)
                )

            wait_until(waits, what="it waits")
            delete_topic(shop.properties, BALLAST)

        with doing(make_room):
            done = shop.call("run", recovery, "--json").document
        assert done["state"] == "verified"
        assert min(lowest) >= usable - MIB, "the floor was kept"
        check_copied_once(shop)


def test_fault_127_a_plan_says_what_is_needed_and_left(
    make_shop: Callable[[EmbeddedKafka], Shop], tmp_path: Path
) -> None:
    with EmbeddedKafka.start(tmp_path / "kafka", disk_bytes=96 * MIB) as kafka:
        shop = make_shop(kafka)
        shop.write_config(limits={"disk_free": "94%"})
        document = plan_copy(shop)
        assert document["disk"]["enough"] is False
        assert "the run waits before" in " ".join(document["warnings"])
        assert "how much others write there meanwhile is unknown" in document["disk"]["told"]
        shown = " ".join(shop.call("show", document["id"]).out.split())
        assert "are needed, and the disk of broker 1 has" in shown


@pytest.mark.parametrize("point", ["wave", "reading back"])
def test_fault_128_the_disk_is_full_and_the_broker_gone(
    make_shop: Callable[[EmbeddedKafka], Shop],
    tmp_path: Path,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    """It is told within seconds by name; with room, and the broker back, all goes on."""
    resize(small_disk, 96 * MIB)
    with EmbeddedKafka.start(small_disk) as kafka:
        shop = make_shop(kafka)
        # Nothing brakes it: the disk fills all the same.
        shop.write_config(limits={"disk_free": "0%"})
        recovery = plan_copy(shop)["id"]
        gone, back, left = threading.Event(), threading.Event(), [1]

        def break_once() -> None:
            if left:
                left.pop()
                fill_up(kafka)
                gone.set()

        check, verify = brakes.check_brakes, verification.verify_injection

        def check_then(context: Any) -> None:
            if context.workspace.ledger.recoveries.get(recovery).injected:
                break_once()
            check(context)

        def verify_then(*arguments: Any, **settings: Any) -> Any:
            break_once()
            return verify(*arguments, **settings)

        if point == "wave":
            monkeypatch.setattr(steps, "check_brakes", check_then)
        else:
            monkeypatch.setattr(verification, "verify_injection", verify_then)

        def mend() -> None:
            assert gone.wait(240)
            began = time.monotonic()
            away = f"broker 1 at {kafka.bootstrap} is away since"
            wait_until(lambda: any(away in told for told in list_said(shop, recovery)), what="told")
            assert time.monotonic() - began < SOON
            resize(small_disk, 256 * MIB)
            kafka.restart()
            back.set()

        with doing(mend):
            first = run(shop, recovery)
        said = list_said(shop, recovery)
        if first != "verified":
            assert run(shop, recovery) == "verified"
        else:
            assert any("is back, after" in told for told in said)
        check_copied_once(shop)


def run(shop: Shop, recovery: str) -> str:
    """The state that it leaves."""
    print(call_main(("run", recovery, "--json"), shop.directory, {}))
    return str(shop.open().ledger.recoveries.get(recovery).state)
