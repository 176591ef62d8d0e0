"""The story of a backlog: three consumers are too slow for it, thirty drain it, and then there are
three again. Every `backlogctl` command is shown and really run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.padding import Padding

from backlog.errors import VerificationFailed
from backlog.kafka.admin import describe_group_state, describe_topic
from backlog.kafka.clients import make_admin
from backlog.ledger import open_ledger
from replay.demo.expand.audit import Handled, read_logs
from replay.demo.expand.result import Result, draw_result, draw_steps
from replay.demo.expand.shop import (
    CONFIG,
    GROUP,
    HANDLED,
    TOPIC,
    NewOrders,
    Size,
    await_commits,
    ending_consumers,
    list_fleets,
    make_backlog,
    make_launcher,
    names_of,
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
from replay.telling.layout import Text
from sandbox.embedded import EmbeddedKafka


@dataclass(frozen=True, slots=True)
class Layout:
    """What must be again as it was."""

    topics: tuple[str, ...]
    partitions: int
    config: Mapping[str, str]
    consumers: tuple[int, ...]  # processes by fleet, the usual one first; without those of none
    members: int


@dataclass(frozen=True, slots=True)
class Times:
    """Moments of the expansion, by the clock: `run` was typed, and it ended."""

    began: float
    ended: float
    steps: tuple[tuple[str, float], ...]


def tell_story(console: Console, size: Size | None = None, report: Path | None = None) -> Result:
    """Plays the whole story in a temporary directory that is gone at the end, as is every process.

    Args:
        report: where the incident report is kept.

    Raises:
        BacklogError: a part of it failed.
    """
    size, started = size or Size(), time.monotonic()
    print_opening(
        console,
        "demo expand",
        "A consumer group is far behind, and its topic has too few partitions for more consumers. "
        "[bold]backlogctl[/] relays the backlog into a temporary topic with ten times as many, "
        "drains it with ten times the consumers, and restores the layout. All of it is real.",
    )
    with (
        ending_on_sigterm(),
        tempfile.TemporaryDirectory(prefix="backlogctl-demo-") as name,
        EmbeddedKafka.start(Path(name) / "kafka", progress=tell_progress(console)) as kafka,
        ending_consumers(Path(name), kafka.bootstrap),
    ):
        stage = Stage(console, Path(name), {"SHOP_KAFKA": kafka.bootstrap})
        result = _play(stage, Path(name), kafka.bootstrap, size)
        write_report(stage, find_recovery(Path(name)), report)
    told = (
        "Now yours: docs/runbook-expand.md goes through it step by step, and "
        "examples/02-drain-a-backlog is such a shop."
    )
    print_end(console, told, result, time.monotonic() - started)
    return result


def _play(stage: Stage, directory: Path, bootstrap: str, size: Size) -> Result:
    _fall_behind(stage, directory, bootstrap, size)
    with NewOrders(bootstrap, size) as orders:
        _watch_usual(stage, bootstrap, size)
        before = _look(directory, bootstrap)
        recovery_id = _plan(stage, directory)
        times = _expand(stage, directory, recovery_id)
        time.sleep(1.0)  # some more orders, for the usual consumers alone
    await_handled({"bootstrap.servers": bootstrap}, size.topic, size.group, size.partitions)
    stage.run("consumers", "status", TOPIC)
    after = _look(directory, bootstrap)
    handled = read_logs(directory / HANDLED)
    return _show(stage, size, times, orders.published, handled, before == after)


def _fall_behind(stage: Stage, directory: Path, bootstrap: str, size: Size) -> None:
    stage.open_chapter(f"A backlog of {size.orders:,} orders")
    (directory / CONFIG).write_text(render_configuration(size))
    make_backlog(bootstrap, size)
    stage.tell(
        f"The topic [bold]{TOPIC}[/] has {size.partitions} partitions, so {size.partitions} "
        f"consumers at most, and each handles {size.rate:,} orders a second. "
        f"{size.arriving:,} new orders a second keep coming all the while."
    )


def _watch_usual(stage: Stage, bootstrap: str, size: Size) -> None:
    stage.run("consumers", "start", TOPIC, quiet=True)  # they are not in the group yet
    await_commits(bootstrap, size)
    stage.run("status")
    time.sleep(size.measured)


def _plan(stage: Stage, directory: Path) -> str:
    stage.open_chapter("Plan: how fast would it be, and what would be done?")
    stage.tell("Nothing is changed yet. What one consumer handles was measured while it worked.")
    stage.run("plan", "expand", TOPIC)
    return find_recovery(directory)


def _expand(stage: Stage, directory: Path, recovery_id: str) -> Times:
    stage.open_chapter("Approve, and run: stop, relay, drain, cut over, restore")
    stage.run("approve", recovery_id, "--by", "demo")
    began = time.time()
    stage.run("run", recovery_id)
    ended = time.time()
    with open_ledger(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        steps = ledger.steps.list(recovery_id)
    times = [
        (step.step, (step.completed_at - step.first_started_at).total_seconds())
        for step in steps
        if step.completed_at is not None
    ]
    start = steps[0].first_started_at.timestamp() - began
    return Times(began, ended, (("start of the command", start), *times))


def _show(
    stage: Stage, size: Size, times: Times, published: int, handled: Handled, restored: bool
) -> Result:
    stage.open_chapter("What the consumers' own logs say")
    if not handled.during or handled.all_back is None:
        raise VerificationFailed(
            "the consumers' logs do not show both hand-overs", subject="demo", hint="run it again"
        )
    backlog = size.orders // size.customers
    during = handled.measure("during", backlog)
    # Back to normal when both are true: the command is through, and the usual ones work.
    end = max(times.ended, handled.all_back)
    result = Result(
        before=handled.measure("before", backlog),
        during=during,
        orders=handled.audit(published, size.customers),
        set_up=during.began - times.began,
        restore=end - handled.last_of_expansion,
        restored=restored,
        consumers=size.consumers,
        least_ratio=size.least_ratio,
        most_seconds=size.most_seconds,
        steps=times.steps,
    )
    stage.show(Padding(draw_result(result), (0, 0, 0, 2)))
    stage.show(Text())
    stage.tell("The steps, from [bold]run[/] on:")
    stage.show(Padding(draw_steps(result), (0, 0, 0, 2)))
    return result


def _look(directory: Path, bootstrap: str) -> Layout:
    """Topics, settings, consumers and members now."""
    admin = make_admin({"bootstrap.servers": bootstrap})
    launcher = make_launcher(directory, bootstrap)
    topic = describe_topic(admin, TOPIC)
    counts = [launcher.count_running(fleet) or 0 for fleet in list_fleets(directory)]
    return Layout(
        topics=tuple(names_of(admin.list_topics(timeout=30).topics)),
        partitions=topic.partitions,
        config=dict(topic.config),
        consumers=tuple(count for count in counts if count),
        members=len(describe_group_state(admin, GROUP).members),
    )
