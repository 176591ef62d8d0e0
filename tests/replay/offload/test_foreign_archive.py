"""Two ledgers that share the archives' place give the same ids: nobody's files are touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backlogctl.errors import Refused
from backlogctl.values import Recovery
from tests.replay.offload.world import OffloadWorld, find_place


def plant(recovery: Recovery) -> None:
    """What another ledger's offload of the same id has finished there."""
    place = find_place(recovery)
    sign = {"version": 1, "recovery_id": recovery.id, "plan_hash": "0" * 64}
    texts = {
        "_parts/job.json": json.dumps(sign),
        "manifest.json": json.dumps(sign),
        "partition=0/000001.parquet": "messages",
    }
    for name, text in texts.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def list_files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_fault_12_a_place_with_another_archive_stops_nobody(idle: OffloadWorld) -> None:
    recovery = idle.plan_approved()
    plant(recovery)
    before = list_files(find_place(recovery))
    with pytest.raises(Refused, match="archive of another recovery"):
        idle.run(recovery)
    steps = {step.step for step in idle.open().ledger.steps.list(recovery.id)}
    assert "stop_consumers" not in steps
    assert idle.cancel(recovery, "leave-consumers").state == "cancelled"
    assert list_files(find_place(recovery)) == before


def test_fault_12_a_cancel_deletes_nobody_elses_archive(idle: OffloadWorld) -> None:
    """It came after the look at the place."""
    recovery = idle.plan_approved()

    def come_first() -> None:
        plant(recovery)

    idle.at("p5.3.fenced", come_first)
    with pytest.raises(Refused, match="archive of another recovery"):
        idle.run(recovery)
    before = list_files(find_place(recovery))
    assert len(before) == 3
    assert idle.cancel(recovery, "leave-consumers").state == "cancelled"
    assert list_files(find_place(recovery)) == before
    assert "nothing of it was changed" in idle.told.getvalue()
