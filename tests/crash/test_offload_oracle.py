"""The oracle of offloads is seen to fail when what keeps the promise is taken out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import delete_records
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.injection import ledger as injection_ledger
from backlogctl.replay.kinds.offload import steps
from backlogctl.replay.kinds.offload.context import OffloadContext
from backlogctl.replay.kinds.redrive.plan import RedriveOptions
from backlogctl.replay.kinds.redrive.planning import plan_redrive
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Recovery
from tests.crash.offload.schedule import make_crash_world
from tests.crash.offload.traffic import Content, Place
from tests.crash.offload.world import CrashWorld, Found, judge_end, judge_offloaded, judge_put_back
from tests.replay.offload.world import find_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def world(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Iterator[CrashWorld]:
    with make_crash_world(kafka.bootstrap, tmp_path, 17) as made:
        yield made


def test_a_deletion_above_the_fence_is_seen(world: CrashWorld) -> None:
    recovery = world.plan_approved()

    def delete_more(admin: Any, topic: str, offsets: Mapping[int, int], *others: Any) -> Any:
        return delete_records(
            admin, topic, {number: at + 10 for number, at in offsets.items()}, *others
        )

    step = "backlogctl.replay.kinds.offload.steps"
    world.patch.setattr(f"{step}.delete_records", delete_more)
    world.at("p5.6.before", lambda: world.traffic.publish(100))
    with suppress(BacklogError):  # where its own check stumbles over it
        world.run(recovery)
    problems = judge_offloaded(world, recovery)
    assert any("above the fence" in text for text in problems), problems
    assert any("are nowhere" in text for text in problems), problems


def test_a_file_that_the_archive_lacks_is_seen(world: CrashWorld) -> None:
    recovery = world.plan_approved()
    world.patch.setattr(OffloadContext, "require_archive", lambda _: None)
    world.at("p5.4.recorded", lambda: drop_file(world, recovery))
    world.run(recovery)
    problems = judge_offloaded(world, recovery)
    assert len(problems) == 1, problems
    assert "are nowhere" in problems[0]


def drop_file(world: CrashWorld, recovery: Recovery) -> None:
    path = find_place(recovery) / "manifest.json"
    document = json.loads(path.read_text())
    (path.parent / document["files"].pop()["path"]).unlink()
    path.write_text(json.dumps(document))


def test_a_group_that_is_moved_without_an_archive_is_seen(world: CrashWorld) -> None:
    recovery = world.plan_approved()
    world.patch.setattr(steps.Archive, "start", lambda *_: None)
    world.patch.setattr(OffloadContext, "require_archive", lambda _: None)
    world.run(recovery)
    problems = judge_offloaded(world, recovery)
    assert any("are nowhere" in text for text in problems), problems


def test_what_is_put_back_twice_is_seen(world: CrashWorld) -> None:
    recovery = world.plan_approved()
    world.run(recovery)
    back = world.plan_putting_back()
    assert world.finish(back) == []
    assert judge_end(world, recovery, back) == []
    freeze = injection_ledger.freeze_ledger
    world.patch.setattr(injection_ledger, "freeze_ledger", lambda *words: (freeze(*words)[0], ()))
    workspace = world.open()
    options = RedriveOptions(source=f"archive:{recovery.id}", everything=True)
    again = plan_redrive(workspace, workspace.config.stream(world.stream), options)
    world.run(approve_plan(workspace, again, by="tester"))
    problems = judge_end(world, recovery, back)
    assert any("were put back twice" in text for text in problems), problems


def test_another_order_and_other_bytes_are_seen() -> None:
    first, second = (Content(b"k", value, (("h", b""),)) for value in (b"1", None))
    archived = ((Place(0, 4), first), (Place(0, 7), second))

    def judge(*put_back: Content) -> list[str]:
        sent = [(Place(0, 20 + n), content, f"id-{n}") for n, content in enumerate(put_back)]
        return judge_put_back(Found(archived, {}, frozenset(), tuple(sent), frozenset()))

    assert judge(first, second) == []
    assert "out of their order" in judge(second, first)[0]
    for other in (Content(b"k", b"", second.headers), Content(b"k", None, (("h", None),))):
        assert len(judge(first, other)) == 2
