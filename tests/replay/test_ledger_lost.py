"""The SQL ledger lost, restored or there twice: what was put back stays known, and there is a way
on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from backlogctl.clock import format_time
from backlogctl.errors import StagingError, UsageError
from backlogctl.ledger import open_ledger
from backlogctl.manifests import Manifest, write_chunk, write_manifest
from backlogctl.replay.engine.archives import clear_staging
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection import adopting
from backlogctl.replay.injection.adopting import Adoption, find_adoptions, say_adoption
from backlogctl.replay.injection.adopting import adopt as adopt_one
from backlogctl.replay.injection.copying import COPY_NAME, write_copy
from backlogctl.replay.injection.storing import _undoing as undoing
from backlogctl.spark_backfill.injection.ledger_topic import CLOSED, CommittedChunk
from backlogctl.spark_backfill.plan_log import prepare_staging
from backlogctl.values import Recovery, RecoveryState
from tests.crash.scenario import make_table
from tests.kit.kafka import move_log_start
from tests.kit.recoveries import LEDGER, keep_plan, make_rebuild_plan, open_desk, store_plan
from tests.kit.shop import DONE, LOST, Shop, count_by_partition

IN_PARTITIONS = count_by_partition(range(DONE, DONE + LOST))
pytestmark = pytest.mark.timeout(900)


def put_one_gap_back(shop: Shop) -> tuple[str, int]:
    """The recovery of the first gap, and how many messages it put back."""
    shop.call("status")
    gap = shop.call("gaps", "--json").document["gaps"][0]
    recovery = shop.call("plan", "rebuild", "orders", "--gap", gap["id"], "--json").document["id"]
    shop.call("approve", recovery, "--by", "Ada")
    shop.call("run", recovery, "--json")
    return recovery, IN_PARTITIONS[gap["partition"]]


def lose_ledger(shop: Shop) -> None:
    for path in shop.directory.glob("ledger.db*"):
        path.unlink()


def read_files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def plan_again(shop: Shop, *words: str, code: int = 0) -> Any:
    return shop.call("plan", "rebuild", "orders", "--json", *words, code=code).document


@pytest.mark.spark
def test_fault_97_a_lost_ledger_takes_nothing_from_an_earlier_recovery(
    shop: Shop, spark: SparkSession
) -> None:
    first, count = put_one_gap_back(shop)
    folder = shop.directory / "staging" / first
    before = read_files(folder)
    lose_ledger(shop)
    again = plan_again(shop)
    assert again["id"] != first
    assert again["counts"]["rebuilt"] == LOST - count, "what was put back is not put back again"
    assert read_files(folder).items() >= before.items()


def test_fault_97_a_clean_up_removes_its_own_messages_alone(tmp_path: Path) -> None:
    """Another ledger's recovery may lie in a folder of the same name."""
    desk = open_desk(tmp_path)
    ended = store_plan(desk)
    desk.ledger.recoveries.advance(ended.id, RecoveryState.REJECTED, "ada")
    messages = desk.staging_of(ended.id) / "messages"
    messages.mkdir(parents=True)
    (messages / "theirs").write_text("theirs")
    object.__setattr__(desk.config.staging, "keep", desk.config.staging.keep * 0)
    assert clear_staging(desk) == ()
    assert (messages / "theirs").exists()


def test_fault_97_two_ledgers_never_make_the_same_id(tmp_path: Path) -> None:
    ledgers = [open_ledger(f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "two")]
    made = [ledger.recoveries.next_id(ledger.now()) for ledger in ledgers for _ in range(50)]
    assert len(set(made)) == 100


def adopt(shop: Shop, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shop.call("ledger", "adopt", "--json", *words).document[
        "recoveries"
    ]
    return found


@pytest.mark.spark
def test_fault_97_what_a_lost_ledger_knew_is_adopted(shop: Shop, spark: SparkSession) -> None:
    """By its plan, its chunks and their places; it is verified when it was read back again."""
    first, count = put_one_gap_back(shop)
    before = shop.open().ledger
    chunks, gaps = before.chunks.list(first), before.recoveries.gap_ids(first)
    gap = before.gaps.get(gaps[0])
    lose_ledger(shop)

    (seen,) = adopt(shop)
    assert (seen["id"], seen["known"], seen["ended"]) == (first, False, "")
    assert seen["messages"] == count
    assert "nothing was changed" in shop.call("ledger", "adopt").out
    assert shop.open().ledger.recoveries.list() == ()

    (done,) = adopt(shop, "--yes")
    assert done["next"] == [f"backlogctl approve {first} --by NAME", f"backlogctl run {first}"]
    assert adopt(shop) == [], "nothing is left to do"
    now = shop.open().ledger
    assert [(c.chunk, c.state, c.first_offset, c.last_offset) for c in now.chunks.list(first)] == [
        (c.chunk, c.state, c.first_offset, c.last_offset) for c in chunks
    ]
    adopted = now.recoveries.get(first)
    assert (adopted.state, adopted.injected) == (RecoveryState.PLANNED, count)
    (again,) = now.recoveries.gap_ids(first)
    assert (now.gaps.get(again).start, now.gaps.get(again).end) == (gap.start, gap.end)

    shop.call("show", first)
    shop.call("approve", first, "--by", "Grace")
    ran = shop.call("run", first, "--json").document
    assert ran["state"] == "verified"
    assert ran["counts"]["injected"] + ran["counts"]["skipped"] == count
    assert shop.open().ledger.gaps.get(again).state == "verified"
    shop.call("report", first)
    second = plan_again(shop)
    assert second["counts"]["rebuilt"] == LOST - count
    shop.call("approve", second["id"], "--by", "Grace")
    shop.call("run", second["id"])
    shop.check_same_set()


@pytest.mark.spark
def test_fault_97_id_lists_are_made_again_and_what_is_left_has_a_name(
    shop: Shop, spark: SparkSession
) -> None:
    first, count = put_one_gap_back(shop)
    folder = shop.directory / "staging" / first
    lists = {path: pq.read_table(path) for path in (folder / "ids").rglob("*.parquet")}
    chunk = shop.open().ledger.chunks.list(first)[0]
    lose_ledger(shop)
    shutil.rmtree(folder)  # messages and manifest too: the topic alone has them now
    refused = plan_again(shop, code=5)["error"]
    assert "id lists of injected chunks are missing" in refused["message"]
    assert "`backlogctl ledger adopt`" in refused["hint"]
    (done,) = adopt(shop, "--yes")
    assert done["id_lists"] == {
        "missing": len(lists), "rebuilt": len(lists), "lost": 0, "lost_messages": 0
    }  # fmt: skip
    assert {path: pq.read_table(path) for path in (folder / "ids").rglob("*.parquet")} == lists
    assert plan_again(shop)["counts"]["rebuilt"] == LOST - count

    # Retention takes the first message that was put back: its chunk cannot be told any more.
    shutil.rmtree(folder)
    assert chunk.first_offset is not None
    move_log_start(shop.properties, shop.topic, {chunk.chunk.slot: chunk.first_offset + 1})
    (left,) = adopt(shop, "--yes")
    assert left["id_lists"]["lost"] == 1
    assert left["id_lists"]["lost_messages"] == chunk.chunk.count
    assert "may be sent a second time" in " ".join(left["told"])
    plan_again(shop, code=5)
    allowed = plan_again(shop, "--allow", "ids")
    assert allowed["verdict"] not in ("exact", "within")
    assert any("may be sent a second time" in reason for reason in allowed["reasons"]), allowed


@pytest.mark.spark
def test_fault_97_a_restored_ledger_learns_what_was_committed_since(
    shop: Shop, spark: SparkSession
) -> None:
    shop.call("status")
    recovery = shop.plan_approved().id
    kept = {path: path.read_bytes() for path in shop.directory.glob("ledger.db*")}
    shop.call("run", recovery)
    lose_ledger(shop)
    for path, content in kept.items():
        path.write_bytes(content)
    assert shop.open().ledger.recoveries.get(recovery).injected == 0
    (found,) = adopt(shop, "--yes")
    assert found["known"]
    assert shop.open().ledger.recoveries.get(recovery).injected == LOST
    assert shop.call("run", recovery, "--json").document["state"] == "verified"
    shop.check_same_set()


@dataclass
class Lost:
    """A recovery of one chunk that is committed, and a new ledger that does not know it."""

    desk: Workspace
    folder: Path
    records: list[CommittedChunk]

    def look(self) -> Adoption:
        (found,) = find_adoptions(self.desk)
        return found

    def adopt(self) -> Recovery:
        adopt_one(self.desk, self.look())
        (recovery,) = self.desk.ledger.recoveries.list()
        return recovery


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lost:
    staging = {"staging": {"dir": str(tmp_path / "staging")}}
    old = open_desk(tmp_path, **staging)
    recovery_id = old.ledger.recoveries.next_id(old.ledger.now())
    folder = old.staging_of(recovery_id)
    chunk = write_chunk(folder, 0, 0, make_table("orders", 0, ["a", "b"], recovery_id))
    sha256 = write_manifest(folder, Manifest(recovery_id, "orders", (chunk,), {}))
    plan = make_rebuild_plan(manifest_sha256=sha256, outcome={"slots": [0]})
    recovery = keep_plan(old, plan, (), recovery_id)
    write_copy(folder, recovery, ())
    record = CommittedChunk(
        *(recovery.id, "orders", 0, 0, recovery.plan_hash, chunk.sha256, 2),
        *("2026-11-21T13:00:00.000000Z", 0, 5),
    )
    records = [record]
    monkeypatch.setattr(adopting, "snapshot_ledger", lambda *_: LEDGER)
    monkeypatch.setattr(adopting, "read_visible", lambda *_: records)
    monkeypatch.setattr(adopting, "place_chunks", lambda *_: {})
    return Lost(open_desk(tmp_path, ledger="sqlite:///new.db", **staging), folder, records)


def test_fault_97_what_is_adopted_is_planned_and_nobody_approved_it(lost: Lost) -> None:
    recovery = lost.adopt()
    assert (recovery.state, recovery.injected, recovery.approved_by) == ("planned", 2, None)
    (chunk,) = lost.desk.ledger.chunks.list(recovery.id)
    assert chunk.injected_at is not None
    assert format_time(chunk.injected_at) == lost.records[0].at
    assert lost.desk.ledger.events.find_break(recovery.id) is None
    assert find_adoptions(lost.desk) == ()


def test_fault_97_what_cannot_go_on_is_not_waiting_for_an_approval(lost: Lost) -> None:
    closing = replace(lost.records[0], chunk=CLOSED, plan_hash="", sha256="", count=0, offset=6)
    lost.records.append(closing)
    recovery = lost.adopt()
    assert (recovery.state, recovery.injected) == ("rejected", 2)
    assert recovery.detail["reason"] == "it was cancelled"


def test_fault_97_another_recovery_of_the_partition_ends_it(lost: Lost) -> None:
    lost.records.append(replace(lost.records[0], recovery="r-other", offset=7))
    (lost.desk.config.staging.dir / "r-other").mkdir()
    found = {one.recovery_id: one for one in find_adoptions(lost.desk)}
    assert found[lost.records[0].recovery].ended.startswith("r-other put messages")
    assert found["r-other"].unknown == "no copy of its plan is in the staging directory"


def test_fault_97_staged_messages_that_are_gone_end_it(lost: Lost) -> None:
    shutil.rmtree(lost.folder / "messages")
    assert lost.look().ended == "its staged messages are gone"


def test_fault_97_another_plan_is_not_taken_for_the_one_that_was_carried_out(lost: Lost) -> None:
    lost.records[0] = replace(lost.records[0], plan_hash="another")
    adopt_one(lost.desk, lost.look())
    assert lost.desk.ledger.recoveries.list() == ()
    assert "not the one that was carried out" in " ".join(say_adoption(lost.look()))


def test_fault_97_a_copy_that_was_changed_is_not_believed(lost: Lost) -> None:
    path = lost.folder / COPY_NAME
    # What the plan's hash does not cover must be what the plan says.
    path.write_text(path.read_text().replace('"group": "service"', '"group": "thieves"', 1))
    assert "was changed" in lost.look().unknown
    adopt_one(lost.desk, lost.look())
    assert lost.desk.ledger.recoveries.list() == ()


def test_fault_97_no_record_names_a_folder_elsewhere(lost: Lost) -> None:
    lost.records[:] = [replace(lost.records[0], recovery="../elsewhere")]
    assert find_adoptions(lost.desk) == ()


def test_fault_97_lists_that_are_gone_are_told_by_their_messages(lost: Lost) -> None:
    shutil.rmtree(lost.folder)
    found = lost.look()
    assert [record.count for record in found.missing] == [2]
    assert "2 messages of them may be sent a second time" in " ".join(say_adoption(found))
    with pytest.raises(UsageError, match="no Kafka ledger says"):
        find_adoptions(lost.desk, ["r-unknown"])


def test_fault_97_a_folder_that_is_there_is_left_alone(lost: Lost) -> None:
    before = read_files(lost.folder)
    plan = undoing(lost.desk, lost.records[0].recovery)
    with pytest.raises(StagingError, match="nothing in it was touched"), plan:
        pytest.fail("planned into it")
    with pytest.raises(StagingError, match="staged there already"):
        prepare_staging(lost.folder.parent, lost.folder)
    assert read_files(lost.folder) == before
