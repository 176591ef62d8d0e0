"""A stream with traffic of every sort: it is offloaded, killed, put back, and judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
from rich.console import Console

from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import create_topic
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.injection.ledger import find_ledger
from backlogctl.replay.kinds.offload.plan import ALLOW_NOTHING
from backlogctl.replay.kinds.redrive.plan import RedriveOptions
from backlogctl.replay.kinds.redrive.planning import plan_redrive
from backlogctl.replay.observe.stream import note_stream
from backlogctl.spark_backfill.injection.ledger_topic import CLOSED, read_visible
from backlogctl.values import ChunkState, Recovery
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from tests.crash.offload.traffic import Content, Place, Traffic
from tests.kit.kafka import read_all, wait_until
from tests.kit.processes import ROOT
from tests.kit.recoveries import PAST, change_ledger
from tests.kit.shop import LOCAL_SPARK
from tests.kit.shortened import STOP_INSTEAD
from tests.replay.expand.world import PARTITIONS, REPLICAS, WITHIN
from tests.replay.offload.world import OffloadWorld, find_fence, find_place

DONE = ("verified", "cancelled")
_TRIES = 3


@dataclass
class CrashWorld(OffloadWorld):
    """One story."""

    seed: int = 0
    shortened: str = "crash"

    @cached_property
    def traffic(self) -> Traffic:
        """Its producers."""
        return Traffic(self.bootstrap, self.topic, PARTITIONS, self.seed)

    def write_config(self) -> None:
        """With consumers that note a message's bytes."""
        super().write_config()
        note = {"ORDER_LOG": str(self.log), "PYTHONPATH": str(ROOT), "NOTE_BYTES": "1"}
        self.set_consumers(environment=note)
        self.change_config(lambda document: document.update(spark=LOCAL_SPARK))

    def begin(self, backlog: int) -> None:
        """Old messages, and slow consumers that work."""
        create_topic(self.properties, self.topic, partitions=PARTITIONS, exist_ok=True)
        self.write_config()
        for _ in range(4):
            self.traffic.mix(backlog // 4)
        self.start_originals()
        wait_until(lambda: None not in self.read_commits().values(), what="commits everywhere")

    def plan(self, rate: float = 0.0, **options: Any) -> Recovery:
        """A transaction that is open all through it may hold all of the space."""
        allow = (ALLOW_NOTHING, *options.pop("allow", ()))
        return super().plan(rate, allow=allow, **options)

    # What is done to the runners.

    def kill(self, recovery: Recovery, point: str = "", moment: float = 0.0) -> bool:
        """A run that is killed at a point, or after some seconds; whether it was."""
        process = self.start("run", recovery.id, "--json", crash_at=point)
        try:
            process.communicate(timeout=moment or WITHIN)
        except subprocess.TimeoutExpired:
            self.kill_group(process)
        return process.returncode == -signal.SIGKILL

    def kill_group(self, process: subprocess.Popen[str]) -> None:
        """With Spark, which is in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def stop(self, recovery: Recovery, point: str) -> subprocess.Popen[str]:
        """A run that is stopped at a point; its lease lasts no longer (fault 2)."""
        os.environ[STOP_INSTEAD] = "1"
        try:
            process = self.start("run", recovery.id, "--json", crash_at=point)
        finally:
            del os.environ[STOP_INSTEAD]
        wait_until(lambda: _is_held(process), WITHIN, f"it is stopped at {point}")
        change_ledger(self.open(), f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
        return process

    def wake(self, process: subprocess.Popen[str]) -> str:
        """A stopped run goes on; what it says at its end."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        try:
            out, err = process.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            self.kill_group(process)
            return "a runner that woke up does not end"
        return f"{process.returncode} {out} {err}"

    def finish(self, recovery: Recovery) -> list[str]:
        """Runs it until it is done; what failed."""
        told = []
        for _ in range(_TRIES):
            if str(self.read(recovery).state) in DONE:
                break
            try:
                Run(self.open(), recovery.id, Console(file=self.told, width=400)).carry_out()
            except BacklogError as error:
                told.append(f"run: {type(error).__name__} {error.message}")
                time.sleep(0.5)
        return told

    def plan_putting_back(self) -> Recovery:
        """The night's recovery, approved."""
        workspace = self.open()
        waiting = workspace.ledger.gaps.list_waiting()
        options = RedriveOptions(source=f"archive:{waiting[0].archive}")
        planned = plan_redrive(workspace, workspace.config.stream(self.stream), options)
        return approve_plan(workspace, planned, by="tester")

    def note(self) -> None:
        """What a watcher sees now."""
        workspace = self.open()
        note_stream(workspace, workspace.config.stream(self.stream))

    def end(self) -> None:
        """Also what was stopped."""
        for process in self.started:
            if process.poll() is None:
                self.kill_group(process)
        super().end()


def _is_held(process: subprocess.Popen[str]) -> bool:
    """Whether it is stopped; or over, where it did not come to the point."""
    if process.poll() is not None:
        return True
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


_HANDLED_SECONDS = 90.0
_ENDING_SECONDS = 30.0


@dataclass(frozen=True)
class Found:
    """Where messages are now."""

    archived: tuple[tuple[Place, Content], ...]
    there: Mapping[Place, Content]  # by producers
    visible_later: frozenset[Place]  # above an open transaction too
    put_back: tuple[tuple[Place, Content, str], ...]  # with the message id
    handled: frozenset[str]  # hashes


def look(world: CrashWorld, recovery: Recovery) -> Found:
    """Reads the archive's files, the topic and the consumers' notes."""
    there, put_back = {}, []
    for message in read_all(world.properties, world.topic, range(PARTITIONS)):
        place = Place(message.partition() or 0, message.offset() or 0)
        headers: Any = message.headers()
        message_id = find_header(headers, MESSAGE_ID)
        if message_id is None:
            there[place] = Content.of_message(message)
        else:
            put_back.append((place, Content.of_message(message), message_id))
    archived = tuple(read_archive(find_place(recovery)))
    return Found(archived, there, list_places(world), tuple(put_back), read_handled(world))


def list_places(world: CrashWorld) -> frozenset[Place]:
    """All that is in the topic, whatever becomes of its transaction."""
    everything = {**world.properties, "isolation.level": "read_uncommitted"}
    messages = read_all(everything, world.topic, range(PARTITIONS))
    return frozenset(Place(m.partition() or 0, m.offset() or 0) for m in messages)


def read_archive(folder: Path) -> list[tuple[Place, Content]]:
    """What the manifest's files hold; nothing where there is no manifest."""
    if not (path := folder / "manifest.json").exists():
        return []
    found = []
    for file in json.loads(path.read_text())["files"]:
        for row in parquet.ParquetFile(folder / file["path"]).read().to_pylist():
            headers = [(item["name"], item["value"]) for item in row["headers"]]
            content = Content.of(row["key"], row["value"], headers)
            found.append((Place(file["partition"], row["offset"]), content))
    return found


def read_handled(world: CrashWorld) -> frozenset[str]:
    """Hashes of what the consumers handled."""
    text = world.log.read_text() if world.log.exists() else ""
    return frozenset(line.split()[0] for line in text.split("\n")[:-1])


def judge_offloaded(world: CrashWorld, recovery: Recovery, state: str = "verified") -> list[str]:
    """(a) After an offload that went forward, before anything is put back."""
    found = look(world, recovery)
    fence, lows = find_fence(world, recovery), world.read_lows()
    problems = _say_state(world, recovery, state)
    problems += judge_places(world, found)
    problems += judge_archive(world, found, fence)
    for number, low in lows.items():
        if low > fence.get(number, 0):
            problems.append(f"partition {number} begins at {low}, above the fence {fence}")
        elif low < fence[number]:
            problems.append(f"partition {number} begins at {low}, before the fence {fence}")
    commits = world.read_commits()
    if behind := [n for n, at in fence.items() if (commits[n] or 0) < at]:
        problems.append(f"the group is before the fence in {behind}: {commits}, {fence}")
    waiting = world.open().ledger.gaps.list_waiting(world.stream)
    for place, _ in found.archived:
        own = [
            gap.id
            for gap in waiting
            if gap.partition == place.partition
            and (gap.start or 0) <= place.offset < (gap.end or 0)
        ]
        if len(own) != 1:
            problems.append(f"{place} of the archive is in {len(own)} gaps that wait")
            break
    if found.put_back:
        problems.append(f"{len(found.put_back)} messages were put back already")
    return problems


def judge_places(world: CrashWorld, found: Found) -> list[str]:
    """Each committed message is in the archive, in the topic, or was handled; its bytes are as the
    producer wrote them."""
    truth = dict(world.traffic.committed)
    kept = dict(found.archived)
    lost = [
        place
        for place, content in truth.items()
        if not (place in kept or place in found.visible_later or content.hash in found.handled)
    ]
    problems = []
    if lost:
        problems.append(f"{len(lost)} of {len(truth)} messages are nowhere, as {min(lost)}")
    for where, messages in (("archive", kept), ("topic", found.there)):
        if foreign := [place for place in messages if place not in truth]:
            problems.append(f"{len(foreign)} messages of the {where} were not committed")
        wrong = [at for at, content in messages.items() if truth.get(at, content) != content]
        if wrong:
            problems.append(f"{len(wrong)} messages of the {where} have other bytes: {min(wrong)}")
    if aborted := found.handled & world.traffic.aborted:
        problems.append(f"{len(aborted)} aborted messages were handled")
    return problems


def judge_archive(world: CrashWorld, found: Found, fence: Mapping[int, int]) -> list[str]:
    """No offset twice, nothing above the fence, nothing that is in the topic or was read too."""
    problems = []
    if twice := [p for p, n in Counter(p for p, _ in found.archived).items() if n > 1]:
        problems.append(f"{len(twice)} offsets are in the archive twice, as {min(twice)}")
    if above := [p for p, _ in found.archived if p.offset >= fence.get(p.partition, 0)]:
        problems.append(f"{len(above)} messages of the archive are above the fence")
    if both := [place for place, _ in found.archived if place in found.there]:
        problems.append(f"{len(both)} messages are in the archive and in the topic: {min(both)}")
    read = [place for place, content in found.archived if content.hash in found.handled]
    if read and not found.put_back:
        problems.append(f"{len(read)} messages of the archive were handled: {min(read)}")
    return problems


def judge_cancelled(world: CrashWorld, recovery: Recovery) -> list[str]:
    """After a cancel before the group was moved: as if there had been no offload."""
    problems = _say_state(world, recovery, "cancelled")
    if any(world.read_lows().values()):
        problems.append(f"messages were deleted: {world.read_lows()}")
    found = look(world, recovery)
    problems += judge_places(world, found)
    if missing := set(world.traffic.committed) - found.visible_later:
        problems.append(f"{len(missing)} messages are no longer in the topic: {min(missing)}")
    left = [
        gap for gap in world.open().ledger.gaps.list(world.stream) if str(gap.state) != "waived"
    ]
    if left:
        problems.append(f"{len(left)} gaps are left")
    return [*problems, *judge_end(world, None, None)]


def judge_end(world: CrashWorld, recovery: Recovery | None, back: Recovery | None) -> list[str]:
    """(b) At the end: all is handled; what was archived was put back once, byte for byte.

    Args:
        recovery: the offload, where it went forward.
        back: what put it back; None: nothing was put back.
    """
    world.set_speed(Role.ORIGINAL, None)
    wanted = {content.hash for content in world.traffic.committed.values()}
    try:
        wait_until(lambda: not wanted - read_handled(world), _HANDLED_SECONDS)
    except AssertionError:
        left = wanted - read_handled(world)
        problems = [f"{len(left)} of {len(wanted)} messages were never handled"]
    else:
        problems = []
    if foreign := read_handled(world) - wanted:
        problems.append(f"{len(foreign)} messages that nobody committed were handled")
    if (running := len(world.list_pids(Role.ORIGINAL))) != REPLICAS:
        problems.append(f"{running} consumers run")
    if not world.find_members():
        problems.append("nobody is in the group")
    problems += _find_processes(world)
    if recovery is not None and back is not None:
        problems += _say_state(world, back, "verified")
        problems += judge_put_back(look(world, recovery))
        problems += _judge_ledgers(world, recovery, back)
    return problems


def judge_outsiders(world: CrashWorld, recovery: Recovery) -> list[str]:
    """Somebody deleted records, commits or the group meanwhile: each message is handled, or in a
    gap that is not closed; what was put back was put back once."""
    world.set_speed(Role.ORIGINAL, None)
    truth = dict(world.traffic.committed)

    def list_left() -> set[Place]:
        world.note()
        handled = read_handled(world)
        gaps = [
            gap
            for gap in world.open().ledger.gaps.list(world.stream)
            if str(gap.state) not in ("verified", "waived")
        ]
        return {
            place
            for place, content in truth.items()
            if content.hash not in handled
            and not any(
                gap.partition == place.partition
                and (gap.start or 0) <= place.offset < (gap.end or 0)
                for gap in gaps
            )
        }

    problems = []
    try:
        wait_until(lambda: not list_left(), _HANDLED_SECONDS)
    except AssertionError:
        left = list_left()
        if left:
            problems.append(f"{len(left)} of {len(truth)} are lost in silence, as {min(left)}")
    if str(now := world.read(recovery).state) not in DONE:
        problems.append(f"it did not come to an end: it is {now}")
    found = look(world, recovery)
    ids = Counter(message_id for *_, message_id in found.put_back)
    if twice := [message_id for message_id, count in ids.items() if count > 1]:
        problems.append(f"{len(twice)} messages were put back twice, as {twice[0]}")
    if not world.find_members():
        problems.append("nobody is in the group")
    return [*problems, *_find_processes(world)]


def _find_processes(world: CrashWorld) -> list[str]:
    """Spark ends a little after its runner."""
    try:
        wait_until(lambda: not world.list_processes(without=(Role.ORIGINAL,)), _ENDING_SECONDS)
    except AssertionError:
        left = world.list_processes(without=(Role.ORIGINAL,))
        return [f"processes are left: {[(pid, words[:60]) for pid, words in left.items()]}"]
    return []


def judge_put_back(found: Found) -> list[str]:
    """Each archived message is in the topic once more: its bytes, its partition, its key's order."""
    problems = []
    ids = Counter(message_id for *_, message_id in found.put_back)
    if twice := [message_id for message_id, count in ids.items() if count > 1]:
        problems.append(f"{len(twice)} messages were put back twice, as {twice[0]}")
    wanted = Counter((place.partition, content) for place, content in found.archived)
    got = Counter((place.partition, content) for place, content, _ in found.put_back)
    if missing := wanted - got:
        problems.append(f"{missing.total()} archived messages were not put back as they were")
    if more := got - wanted:
        problems.append(f"{more.total()} messages were put back that are not in the archive so")
    origin = {content: place for place, content in found.archived}
    order: dict[tuple[int, bytes | None], list[Place]] = defaultdict(list)
    for place, content, _ in sorted(found.put_back, key=lambda item: item[0]):
        if content.key is not None and content in origin:
            order[place.partition, content.key].append(origin[content])
    if broken := [key for key, places in order.items() if not _ascends(places)]:
        problems.append(f"keys are out of their order: {broken[:3]}")
    return problems


def _ascends(places: Iterable[Place]) -> bool:
    offsets = [place.offset for place in places]
    return offsets == sorted(offsets)


def _judge_ledgers(world: CrashWorld, recovery: Recovery, back: Recovery) -> list[str]:
    """The Kafka ledger has each chunk once, SQL says the same, and the gaps are closed."""
    workspace = world.open()
    ledger = find_ledger(workspace, world.read(back))
    if ledger is None:
        return ["there is no Kafka ledger"]
    records = read_visible(world.properties, ledger, range(ledger.partitions))
    seen = Counter(
        (record.slot, record.chunk)
        for record in records
        if (record.recovery, record.topic) == (back.id, world.topic) and record.chunk != CLOSED
    )
    chunks = workspace.ledger.chunks.list(back.id)
    problems = []
    if seen != Counter((item.chunk.slot, item.chunk.number) for item in chunks):
        problems.append(f"the Kafka ledger has {seen}, and {len(chunks)} chunks were staged")
    if any(item.state is not ChunkState.INJECTED for item in chunks):
        problems.append("SQL does not say of each chunk that it was injected")
    gaps = [gap for gap in workspace.ledger.gaps.list(world.stream) if gap.archive == recovery.id]
    if open_ones := [gap for gap in gaps if str(gap.state) not in ("verified", "waived")]:
        problems.append(f"gaps are not closed: {[(g.id, str(g.state)) for g in open_ones]}")
    return problems


def _say_state(world: CrashWorld, recovery: Recovery, wanted: str) -> list[str]:
    now = world.read(recovery)
    return [] if now.state == wanted else [f"{recovery.kind} is {now.state}: {dict(now.detail)}"]
