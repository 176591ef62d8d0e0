"""Launchers: what every one does, the commands of a user, and people as launchers."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from backlogctl.clock import Deadline
from backlogctl.config import Consumers, Ramp, root
from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import (
    CommandLauncher,
    Fleet,
    ManualLauncher,
    command,
    manual,
    ramp_up,
)
from backlogctl.kafka.clients import make_consumer
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.fanout.launchers.containers import ContainerWorld
from tests.fanout.launchers.fleets import (
    LocalWorld,
    ManualWorld,
    World,
    make_fleet,
    no_stop,
    python,
    read_seen,
    wait_for_count,
)
from tests.fanout.launchers.pods import PodWorld
from tests.kit.kafka import properties_of, repeating

# The configuration's own tests read it by reference. Other processes' tests have secrets too.
SECRET = f"hunter2-{uuid.uuid4().hex}"


PEOPLE = pytest.param("manual", marks=pytest.mark.kafka)
PODS = pytest.param("kubernetes", marks=pytest.mark.kubernetes)


@pytest.fixture(params=["process", "command", "compose", PEOPLE, PODS])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made: World
    if request.param == "manual":
        kafka = request.getfixturevalue("kafka")
        topic = request.getfixturevalue("topic")(partitions=4)
        made = ManualWorld(tmp_path, kafka.bootstrap, topic, request.getfixturevalue("group"))
    elif request.param == "kubernetes":
        node = request.getfixturevalue("kubernetes")
        made = PodWorld(tmp_path, node, f"test-{request.getfixturevalue('unique')}")
    elif request.param == "compose":
        made = ContainerWorld(tmp_path)
    else:
        made = LocalWorld(tmp_path, request.param, {"SHOP_SECRET": SECRET, "LEVEL": "info"})
    yield made
    made.close()


@pytest.fixture(params=["process", "command"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalWorld]:
    made = LocalWorld(tmp_path, request.param, {"SHOP_SECRET": SECRET, "LEVEL": "info"})
    yield made
    made.close()


def test_up_again_down_and_stopped_twice(world: World) -> None:
    launcher = world.launcher()
    assert launcher.count_running(world.fleet) == 0
    launcher.scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)
    launcher.scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)
    launcher.scale(world.fleet, 3, no_stop)
    wait_for_count(world, 3)
    launcher.scale(world.fleet, 1, no_stop)
    wait_for_count(world, 1)
    launcher.stop(world.fleet, no_stop)
    wait_for_count(world, 0)
    launcher.stop(world.fleet, no_stop)
    wait_for_count(world, 0)


def test_a_new_launcher_finds_the_same_fleet(world: World) -> None:
    world.launcher().scale(world.fleet, 2, no_stop)
    assert world.launcher().count_running(world.fleet) == 2
    world.launcher().scale(world.fleet, 3, no_stop)
    wait_for_count(world, 3)
    world.launcher().stop(world.fleet, no_stop)
    wait_for_count(world, 0)


def test_look_ends_the_waiting_and_the_next_call_goes_on(world: World) -> None:
    class Pause(Exception):
        pass

    def stop_at_once() -> None:
        raise Pause

    with pytest.raises(Pause):
        world.launcher().scale(world.fleet, 2, stop_at_once)
    world.launcher().scale(world.fleet, 2, no_stop)
    wait_for_count(world, 2)


def test_a_ramp_goes_up_in_steps_and_not_above_the_limit(world: World) -> None:
    steps: list[int] = []
    looks: list[float] = []
    began = time.monotonic()
    ramp = Ramp(step=2, every=timedelta(seconds=0.7))
    reached = ramp_up(
        world.launcher(),
        world.fleet,
        10,
        ramp,
        lambda: looks.append(time.monotonic()),
        steps.append,
        max_consumers=3,
    )
    assert reached == 3
    assert steps == ([3] if isinstance(world, ManualWorld) else [2, 3])
    assert isinstance(world, ManualWorld) or time.monotonic() - began >= 0.7
    assert len(looks) > 3
    wait_for_count(world, 3)
    assert ramp_up(world.launcher(), world.fleet, 3, ramp, no_stop, steps.append) == 3
    assert steps[-1] == 3


def test_a_plan_says_how(world: World) -> None:
    said = world.launcher().describe(world.fleet)
    assert said
    assert SECRET not in said


def test_a_consumer_learns_what_to_read(local: LocalWorld) -> None:
    local.launcher().scale(local.fleet, 2, no_stop)
    wait_for_count(local, 2)
    for told in read_seen(local.seen).values():
        environment = told["environment"]
        assert environment["BACKLOG_TOPIC"] == "orders.recovery.r-1"
        assert environment["BACKLOG_GROUP"] == "service.recovery.r-1"
        assert environment["BACKLOG_BOOTSTRAP_SERVERS"] == "127.0.0.1:1"
        assert environment["BACKLOG_ROLE"] == "recovery"
        assert environment["BACKLOG_STREAM"] == "orders"
        assert environment["BACKLOG_RECOVERY"] == "r-1"
        assert (environment["SHOP_SECRET"], environment["LEVEL"]) == (SECRET, "info")
        words = ["--topic=orders.recovery.r-1", "--group=service.recovery.r-1"]
        assert told["argv"][2:6] == [*words, "127.0.0.1:1", "recovery-r-1"]
        assert told["cwd"] == str(local.consumers.directory)
    if local.consumers.launcher == "process":
        indices = sorted(told["argv"][6] for told in read_seen(local.seen).values())
        assert indices == ["0", "1"]


def test_what_the_caller_was_told_is_not_told_to_consumers(
    local: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLOG_CRASH_AT", "p4.6")
    monkeypatch.setenv("BACKLOG_TOPIC", "another")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", SECRET)
    local.launcher().scale(local.fleet, 1, no_stop)
    wait_for_count(local, 1)
    (told,) = read_seen(local.seen).values()
    assert not {"BACKLOG_CRASH_AT", "AIRFLOW__CORE__FERNET_KEY"} & set(told["environment"])
    assert told["environment"]["BACKLOG_TOPIC"] == "orders.recovery.r-1"


def test_fault_59_a_secret_is_in_no_file_and_no_argument(local: LocalWorld) -> None:
    local.launcher().scale(local.fleet, 2, no_stop)
    wait_for_count(local, 2)
    for path in local.fleet.directory.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
        assert path.stat().st_mode & 0o077 == 0, path
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert SECRET.encode() not in line.read_bytes()
        except OSError:
            continue  # it has ended


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


def make(**settings: Any) -> CommandLauncher:
    commands = {"scale": ["true"], "stop": ["true"]}
    return CommandLauncher(
        Consumers.model_validate({"launcher": "command", **commands, **settings})
    )


def test_without_a_status_nobody_knows(fleet: Fleet) -> None:
    launcher = make()
    launcher.scale(fleet, 3, no_stop)
    assert launcher.count_running(fleet) is None
    launcher.stop(fleet, no_stop)


@pytest.mark.parametrize(
    ("printed", "count"), [("3", 3), ("ready: 2/5", 2), ("a\n\n 12 b 7", 12), ("n=0", 0)]
)
def test_status_is_the_first_number(fleet: Fleet, printed: str, count: int) -> None:
    status = python(f"import sys; print(99, file=sys.stderr); print({printed!r})")
    assert make(status=status).count_running(fleet) == count


def test_a_failed_command_is_an_error_with_its_last_lines(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root, "_SECRETS", {"hunter2-of-the-shop"})
    text = "import sys; print('out'); [print('line', n, file=sys.stderr) for n in range(99)];"
    text += "sys.exit('denied: hunter2-of-the-shop')"
    with pytest.raises(
        BacklogError, match=r"exit code 1.*(\n.*)*line 98\n  denied: \*\*\*"
    ) as caught:
        make(stop=python(text)).stop(fleet, no_stop)
    assert "hunter2" not in f"{caught.value} {caught.value!r}"
    assert "line 5\n" not in caught.value.message
    assert "consumers.stop" in caught.value.subject
    with pytest.raises(BacklogError, match="only on stdout"):
        make(scale=python("import sys; print('only on stdout'); sys.exit(2)")).scale(
            fleet, 1, no_stop
        )
    with pytest.raises(BacklogError, match="could not be started: No such file"):
        make(scale=["no-such-program"]).scale(fleet, 1, no_stop)
    with pytest.raises(BacklogError, match="printed no number but: none"):
        make(status=["echo", "none"]).count_running(fleet)


def test_a_command_that_takes_too_long_is_ended(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"

    class Late(Deadline):
        """The time is not over before the command has begun."""

        @property
        def expired(self) -> bool:
            return begun.exists() and super().expired

    monkeypatch.setattr(command, "Deadline", Late)
    began = time.monotonic()
    text = f"echo begun; touch {begun}; sleep 600; :"
    with pytest.raises(BacklogError, match=r"longer than 0.3 s(.|\n)*begun"):
        make(scale=["sh", "-c", text], command_within="300ms").scale(fleet, 1, no_stop)
    assert time.monotonic() - began < 120


def test_scale_waits_for_status_and_gives_up_in_the_end(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    text = "import sys; p = sys.argv[1]; n = int(open(p).read()) + 1; open(p, 'w').write(str(n));"
    status = python(text + "print(n - 1)", str(count))
    make(status=status).scale(fleet, 2, no_stop)
    assert count.read_text() == "3"
    slow = make(status=["echo", "7"], command_within="200ms")
    # Its commands take no time: they have the same limit.
    monkeypatch.setattr(slow, "_run", lambda *_: "7")
    with pytest.raises(BacklogError, match=r"still prints 7 after 0.2 s, not 2"):
        slow.scale(fleet, 2, no_stop)
    with pytest.raises(BacklogError, match=r"still prints 7 after 0.2 s, not 0"):
        make(status=["echo", "7"], stop_within="200ms").stop(fleet, no_stop)


def test_look_ends_a_command(fleet: Fleet) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        make(scale=["sleep", "600"]).scale(fleet, 1, stop)
    assert time.monotonic() - began < 120


class AssignedConsumer:
    """Takes its partition by itself and commits now and then; the group shows no member."""

    def __init__(self, own_fleet: Fleet) -> None:
        self.last = 0.0
        settings = {"group.id": own_fleet.group, "auto.offset.reset": "earliest"}
        self._consumer = make_consumer(properties_of(own_fleet.bootstrap_servers), settings)
        self._place = TopicPartition(own_fleet.topic, 0, 0)
        self._consumer.assign([self._place])
        self._running = ExitStack()

    def start(self) -> None:
        self._running.callback(self._consumer.close)
        self._running.enter_context(repeating(self._commit, each=0.2))

    def end(self) -> None:
        self._running.close()

    def _commit(self) -> None:
        self._place.offset += 1
        self.last = time.monotonic()
        self._consumer.commit(offsets=[self._place], asynchronous=False)


@pytest.fixture
def own_fleet(kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path) -> Fleet:
    return make_fleet(
        tmp_path, topic=topic(partitions=2), group=group, bootstrap_servers=kafka.bootstrap
    )


def test_consumers_that_never_show_as_members(own_fleet: Fleet) -> None:
    consumer = AssignedConsumer(own_fleet)
    errands: list[threading.Timer] = []
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        do = consumer.start if text.startswith("Start") else consumer.end
        errands.append(threading.Timer(1.0, do))
        errands[-1].start()

    launcher = ManualLauncher(properties_of(own_fleet.bootstrap_servers), hear)
    launcher.scale(own_fleet, 3, no_stop)
    assert consumer.last > 0
    launcher.stop(own_fleet, no_stop)
    assert time.monotonic() - consumer.last > 5
    for errand in errands:
        errand.join()
    assert len(said) == 2
    for text in (own_fleet.topic, own_fleet.group, own_fleet.bootstrap_servers):
        assert all(text in sentence for sentence in said)
    assert said[0].startswith("Start 3 consumers")
    assert "3 members" in said[0]
    assert said[1].startswith("Stop every consumer")


def test_it_looks_twice_a_second_and_never_gives_up_by_itself(
    own_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    looks: list[float] = []  # seconds slept until then; what the machine takes does not count

    class Enough(Exception):
        pass

    def look() -> None:
        looks.append(sum(slept))
        if looks[-1] > 30:
            raise Enough

    monkeypatch.setattr(manual, "time", SimpleNamespace(sleep=slept.append))
    with pytest.raises(Enough):
        ManualLauncher(properties_of(own_fleet.bootstrap_servers), lambda _: None).scale(
            own_fleet, 1, look
        )
    assert max(b - a for a, b in itertools.pairwise(looks)) <= 0.5


def test_it_asks_once_for_each_thing(own_fleet: Fleet) -> None:
    """The same request, made again while people are at it, is waited for without another word.

    The next run says it again: somebody else may look at that.
    """
    said: list[str] = []

    class Later(Exception):
        pass

    def interrupt(after: int) -> Callable[[], None]:
        left = itertools.count(after, -1)

        def look() -> None:
            if next(left) == 0:
                raise Later

        return look

    for _ in range(2):  # a launcher of each run
        launcher = ManualLauncher(properties_of(own_fleet.bootstrap_servers), said.append)
        for _ in range(2):
            with pytest.raises(Later):
                launcher.scale(own_fleet, 2, interrupt(5))
        with pytest.raises(Later):
            launcher.scale(own_fleet, 3, interrupt(5))
    assert [text.split(" of group")[0] for text in said] == [
        "Start 2 consumers",
        "Start 3 consumers",
    ] * 2


def test_nobody_is_asked_to_stop_what_does_not_run(own_fleet: Fleet) -> None:
    said: list[str] = []
    launcher = ManualLauncher(properties_of(own_fleet.bootstrap_servers), said.append)
    launcher.stop(own_fleet, no_stop)
    launcher.stop(own_fleet, no_stop)
    assert len(said) == 1
