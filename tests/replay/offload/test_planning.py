"""Why an offload is refused before anything is changed, and what its plan says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from backlogctl.errors import InvalidTransition, Refused, UsageError
from backlogctl.kafka.admin import list_offsets, list_topic_readers
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlogctl.replay.engine.options import read_options
from backlogctl.replay.kinds.offload.plan import OffloadOptions
from backlogctl.replay.kinds.offload.planning import look_at_place, plan_offload
from backlogctl.replay.observe import snapshot
from tests.kafka_tools import set_offsets_raw
from tests.replay.expand.world import PARTITIONS
from tests.replay.offload.conftest import READ, MakeOffload
from tests.replay.offload.world import OffloadWorld


def test_a_plan_says_what_is_unread_where_it_goes_and_what_that_frees(
    make_idle: MakeOffload,
) -> None:
    world = make_idle(400)
    plan = world.plan().plan
    assert plan["unread"] == 400 - 2 * READ
    assert plan["bytes"] > 1000
    assert plan["place"]["location"] == str(world.directory / "archives" / plan_id(plan))
    assert plan["place"]["on_broker"] is True
    assert plan["freeing"]["most"] > plan["bytes"]
    (broker,) = plan["disks"]["brokers"]
    assert broker["total"] > broker["usable"] > 0
    assert world.open().ledger.disks.history("main")
    assert world.read_lows() == {0: 0, 1: 0}


def find_ends(world: OffloadWorld) -> dict[int, int]:
    """Where the logs end."""
    return list_offsets(world.properties, world.topic, range(PARTITIONS), "latest")


def plan_id(plan: object) -> str:
    """The id that a plan's place ends in."""
    assert isinstance(plan, dict)
    return str(plan["place"]["location"].rpartition("/")[2])


def test_an_archive_on_a_brokers_disk_is_allowed_by_name(make_idle: MakeOffload) -> None:
    world = make_idle(200)
    workspace = world.open()
    said = OffloadOptions(allow=("other-groups:billing",))
    with pytest.raises(Refused, match="on the disk of broker 1") as caught:
        plan_offload(workspace, workspace.config.stream("orders"), said)
    again = "plan offload orders --allow other-groups:billing --allow disk`"
    assert again in caught.value.hint, "what was said stays said"


def test_place_without_room_or_of_unknown_need(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    elsewhere = LogDirs((BrokerLogDirs(1, 5, 10, {}, ("/no/such/folder",)),))
    full = look_at_place(str(tmp_path / "a" / "b"), free * 2, elsewhere)
    assert (full.enough, full.on_broker) == (False, None)
    assert "not enough room" in full.problem
    unknown = look_at_place(str(tmp_path), None, LogDirs(None, "nobody tells"))
    assert unknown.enough is None
    assert "nobody tells" in unknown.problem
    assert look_at_place(str(tmp_path), 10, elsewhere).problem == ""
    store = look_at_place("s3a://bucket/it", 10, elsewhere)
    assert (store.free, store.problem) == (None, "")


def test_compacted_topics_are_not_cut(make_idle: MakeOffload) -> None:
    world = make_idle(40, {"cleanup.policy": "compact"})
    with pytest.raises(Refused, match=r"cleanup\.policy is compact"):
        world.plan()


def test_fault_21_without_a_commit_it_is_unknown_what_is_unread(make_idle: MakeOffload) -> None:
    world = make_idle(40, read=None)
    with pytest.raises(Refused, match="does not exist"):
        world.plan()
    set_offsets_raw(world.properties, world.group, world.topic, {1: 3})
    with pytest.raises(Refused, match="no committed offset on partitions 0:") as caught:
        world.plan()
    assert "--reset-offsets" in caught.value.hint


def test_fault_22_committed_beyond_the_end(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    set_offsets_raw(world.properties, world.group, world.topic, {0: 4000})
    with pytest.raises(Refused, match="beyond the end"):
        world.plan()


def test_fault_60_denied_topics(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    world.change_config(lambda document: document.update(guards={"deny_topics": ["orders-*"]}))
    with pytest.raises(Refused, match="denied by the pattern"):
        world.plan()


def test_nothing_is_unread(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    set_offsets_raw(world.properties, world.group, world.topic, find_ends(world))
    with pytest.raises(Refused, match="nothing is unread"):
        world.plan()


def test_consumers_must_be_known(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    world.change_config(lambda document: document["streams"]["orders"].pop("consumers"))
    with pytest.raises(UsageError, match="consumers are started"):
        world.plan()


def test_discarding_needs_a_source_or_a_word(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    with pytest.raises(Refused, match="no source") as caught:
        world.plan(discard=True)
    assert "--allow lose" in caught.value.hint
    lost = world.plan(discard=True, allow=("lose",))
    assert lost.plan["place"] is None
    assert any("never comes back" in text for text in lost.plan["given_back"])


def test_another_recovery_of_the_group_is_in_the_way(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    first = world.plan_approved()
    with pytest.raises(InvalidTransition, match=first.id):
        world.plan()


def test_other_groups_are_named_with_what_they_lose(make_idle: MakeOffload) -> None:
    world = make_idle(400)
    audit, ahead = f"{world.group}-audit", f"{world.group}-ahead"
    ends = find_ends(world)
    set_offsets_raw(world.properties, audit, world.topic, {0: 5, 1: ends[1]})
    set_offsets_raw(world.properties, ahead, world.topic, ends)
    with pytest.raises(Refused, match=rf"{audit} \(at most {ends[0] - 5} messages\)") as caught:
        world.plan()
    assert ahead not in caught.value.message
    assert f"--allow other-groups:{audit}" in caught.value.hint
    with pytest.raises(Refused, match=audit):
        world.plan(allow=("other-groups:somebody-else",))
    plan = world.plan(allow=(f"other-groups:{audit}",)).plan
    (cut,) = plan["cut_groups"]
    assert (cut["group"], cut["messages"]) == (audit, ends[0] - 5)


def test_a_group_that_committed_on_some_partitions_loses_on_the_others(
    make_idle: MakeOffload,
) -> None:
    world = make_idle(400)
    half, ends = f"{world.group}-half", find_ends(world)
    set_offsets_raw(world.properties, half, world.topic, {0: ends[0]})
    with pytest.raises(Refused, match=rf"{half} \(at most {ends[1]} messages\)"):
        world.plan()
    (cut,) = world.plan(allow=(f"other-groups:{half}",)).plan["cut_groups"]
    assert (cut["group"], cut["messages"]) == (half, ends[1])


def test_groups_that_may_not_be_seen_are_unknown(
    make_idle: MakeOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_idle(40)
    real = list_topic_readers

    def hide(*args: object) -> object:
        return replace(real(*args), hidden=("payments",))  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "list_topic_readers", hide)
    with pytest.raises(Refused, match="is unknown: the tool may not read") as caught:
        world.plan()
    assert "--allow unknown-groups" in caught.value.hint
    assert world.plan(allow=("unknown-groups",)).plan["others_unknown"]


def test_words_that_are_not_known(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    config = world.open().config
    stream = config.stream("orders")
    for word in ("disc", "other-groups:", "other-groups"):
        with pytest.raises(UsageError, match="is not known"):
            read_options(OffloadOptions, {"allow": [word]}, config, stream)
    said = {"allow": ["other-groups:a b", "disk"]}
    assert read_options(OffloadOptions, said, config, stream).allow == ("disk", "other-groups:a b")
