"""Files of an archive that go: a purge that is killed or fails, files that somebody else removed.

What is said is true at each moment, and the command that is printed ends it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.values import GapState
from tests.kit.following import find_next
from tests.kit.kafka import move_log_start, set_config
from tests.kit.shop import Shop, offload
from tests.replay.offload.test_circumstances import TOTAL, offloaded
from tests.replay.redrive.world import (
    KEEP,
    carry_out,
    keys_of,
    make_order,
    plan,
    publish,
    read_sent,
)
from tests.spark_backfill.archive.archiving import list_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["offloaded"]


def find_place(shop: Shop, archive: str) -> Path:
    return Path(shop.open().ledger.archives.get(archive).location)


def offload_many(shop: Shop, spark: SparkSession) -> str:
    """Into many small files."""
    shop.write_config(source=None)
    set_config(shop.properties, shop.topic, KEEP)
    publish(shop, shop.topic, [make_order(number) for number in range(TOTAL)])
    return offload(shop, spark, file_bytes=300)


def list_states(shop: Shop) -> set[GapState]:
    return {gap.state for gap in shop.open().ledger.gaps.list()}


def end_purge(shop: Shop, archive: str) -> None:
    """By the command that is printed."""
    command = find_next(shop.call("archive", "show", archive))
    if shop.open().ledger.archives.get(archive).purged_at is None:
        assert command == f"backlogctl archive purge {archive} --allow lose"
        shop.call(*shlex.split(command)[1:])
    assert list_states(shop) == {GapState.WAIVED}
    left = [path.name for path in find_place(shop, archive).rglob("*") if path.is_file()]
    assert left in ([], ["notes.txt"])
    assert find_next(shop.call("archive", "show", archive)) == ""


def test_fault_134_a_purge_that_fails_gives_nothing_up(offloaded: tuple[Shop, str]) -> None:
    """What it could not delete waits still, and can be put back."""
    shop, archive = offloaded
    job = find_place(shop, archive) / "_parts" / "job.json"
    own = job.read_text()
    job.write_text(own.replace(archive, "r-20000101-0001"))
    refused = shop.call("archive", "purge", archive, "--allow", "lose", "--json", code=5).error
    assert refused["code"] == "foreign_archive"
    assert list_states(shop) == {GapState.STAGED}
    job.write_text(own)
    assert "plan redrive" in shop.call("gaps").out
    end_purge(shop, archive)


@pytest.mark.parametrize("point", ["begun", "file", "file:2", "deleted", "recorded"])
def test_fault_134_a_purge_that_is_killed_gives_up_only_what_is_gone(
    offloaded: tuple[Shop, str], point: str
) -> None:
    shop, archive = offloaded
    (find_place(shop, archive) / "notes.txt").write_text("somebody's")
    words = ("archive", "purge", archive, "--allow", "lose")
    assert shop.run(*words, code=None, BACKLOG_CRASH_AT=f"p10.purge.{point}").code != 0
    gone = not list_data(find_place(shop, archive))
    assert gone == (point in ("deleted", "recorded"))
    if not gone:
        assert list_states(shop) == {GapState.STAGED}
    end_purge(shop, archive)


def test_fault_135_files_that_somebody_removed_are_missing(offloaded: tuple[Shop, str]) -> None:
    """A list and a look see it; `status` says only when they were seen."""
    shop, archive = offloaded

    def look() -> tuple[list[str], list[str], str]:
        (listed,) = shop.call("archive", "list", "--json").document["archives"]
        shown = shop.call("archive", "show", archive, "--json").document
        assert listed["files"] == shown["files"]
        files = listed["files"]
        return files["missing"], files["changed"], files["problem"]

    assert look() == ([], [], "")
    assert "missing files" not in shop.call("archive", "list").out
    assert "all there" in shop.call("archive", "show", archive).out
    location = find_place(shop, archive)
    first, second = list_data(location)[:2]
    first.unlink()
    second.write_bytes(b"x")
    names = [str(path.relative_to(location)) for path in (first, second)]
    assert look() == (names[:1], names[1:], "")
    for words in (("list",), ("show", archive)):
        told = " ".join(shop.call("archive", *words).out.split())
        assert "missing files: partition=" in told
        assert "changed files: partition=" in told
    (location / "manifest.json").write_text("{}")
    assert "is not the manifest" in look()[2]
    assert "is unknown" in shop.call("archive", "list").out
    shutil.rmtree(location)
    assert look() == (["manifest.json"], [], "")
    (gap, *_) = shop.open().ledger.gaps.list()
    moment = f"{gap.detected_at:%Y-%m-%d %H:%M}"
    (stream,) = shop.call("status", "--json", code=None).document["streams"]
    assert f"not put back yet: {archive} was whole at {moment}" in stream["sentence"]
    shop.call("archive", "purge", archive, "--allow", "lose")
    (listed,) = shop.call("archive", "list", "--json").document["archives"]
    assert listed["files"] is None


def test_fault_136_a_damaged_file_is_named_with_both_ways_out(
    offloaded: tuple[Shop, str],
) -> None:
    """Nothing is planned unless somebody says so."""
    shop, archive = offloaded
    location = find_place(shop, archive)
    file = json.loads((location / "manifest.json").read_text())["files"][-1]
    content = (location / file["path"]).read_bytes()
    (location / file["path"]).write_bytes(content[:9] + b"x" + content[10:])
    assert "all there" in shop.call("archive", "show", archive).out, "by their sizes"
    refused = plan(shop, "--from", f"archive:{archive}", code=1)
    assert f"corrupt: {file['path']}" in refused["message"]
    assert "bring these files back" in refused["hint"]
    place = f"{file['partition']}:{file['first_offset']}-{file['last_offset']}"
    assert f"`--allow damaged` puts back what is whole, without {place}" in refused["hint"]
    assert [one.kind for one in shop.open().ledger.recoveries.list()] == ["offload"]


def test_fault_136_what_is_whole_is_put_back_by_name(empty_shop: Shop, spark: SparkSession) -> None:
    """Of a damaged file the offsets stay open, and come once it is back; nothing comes twice."""
    shop, archive = empty_shop, offload_many(empty_shop, spark)
    source, location = f"archive:{archive}", find_place(shop, archive)
    files = json.loads((location / "manifest.json").read_text())["files"]
    changed, missing, *_ = (file for file in files if file["partition"] == 1)
    whole = [(location / file["path"]).read_bytes() for file in (changed, missing)]
    (location / changed["path"]).write_bytes(whole[0][:9] + b"x" + whole[0][10:])
    (location / missing["path"]).unlink()
    damaged = f"1:{changed['first_offset']}-{missing['last_offset']}"
    lost = changed["count"] + missing["count"]
    planned = carry_out(shop, "--from", source, "--allow", "damaged")
    assert (planned["counts"]["staged"], planned["verdict"]) == (TOTAL - lost, "partial")
    assert damaged in " ".join(planned["reasons"])
    sent = keys_of(read_sent(shop))
    assert (sent.total(), set(sent.values())) == (TOTAL - lost, {1})
    states = {gap.partition: gap.state for gap in shop.open().ledger.gaps.list()}
    assert states == {0: GapState.VERIFIED, 1: GapState.STAGED, 2: GapState.VERIFIED}
    again = plan(shop, "--from", source, "--allow", "damaged", code=5)
    assert "put back already" in again["message"]
    assert "waive" not in again["hint"]
    assert len(shop.open().ledger.gaps.list_waiting()) == 1, "nobody has what was damaged"
    for file, content in zip((changed, missing), whole, strict=True):
        (location / file["path"]).write_bytes(content)
    assert carry_out(shop, "--from", source)["counts"]["staged"] == lost
    assert keys_of(read_sent(shop)) == {str(number).encode(): 1 for number in range(TOTAL)}
    assert list_states(shop) == {GapState.VERIFIED}


def test_fault_136_what_was_lost_again_is_not_given_back_by_a_part(
    empty_shop: Shop, spark: SparkSession
) -> None:
    """What was put back, and expired unread, may lie in the damaged file: its gap stays open."""
    shop, archive = empty_shop, offload_many(empty_shop, spark)
    source, location = f"archive:{archive}", find_place(shop, archive)
    shop.call("status", code=None)
    carry_out(shop, "--from", source)
    move_log_start(shop.properties, shop.topic, shop.read_ends())
    shop.call("gaps")
    victim = list_data(location)[0]
    content = victim.read_bytes()
    victim.unlink()
    staged = carry_out(shop, "--from", source, "--allow", "damaged")["counts"]["staged"]
    assert 0 < staged < TOTAL
    assert shop.call("archive", "show", archive, "--json").document["needed_by"]
    victim.write_bytes(content)
    assert carry_out(shop, "--from", source)["counts"]["staged"] == TOTAL - staged
    assert keys_of(read_sent(shop)) == {str(number).encode(): 1 for number in range(TOTAL)}
    assert not shop.call("archive", "show", archive, "--json").document["needed_by"]
