"""Random schedules of kills: `python -m tests.crash.schedule --n 50 --seed 7`.

Of an injection: a small staged recovery; the runner's process group is killed with SIGKILL at a
named point or a random moment, one to three times, and then it runs to the end; in every second one
rows move on meanwhile. The oracle compares what a read_committed reader sees with what was staged.
With `--brokers 3` one of three brokers is killed in each schedule, too, and comes back; how many of
these kills came before the work had ended is printed.
Of an expansion: see `expand_schedule`; of an offload and what is put back after it:
`offload.schedule`; of outbox, look-back and idempotent consumer: `delivery.schedule`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.crash.delivery.schedule import DeliverySchedule, run_alone
from tests.crash.expand_schedule import ExpandSchedule, run_expansion
from tests.crash.forking import kill_process
from tests.crash.offload.schedule import OffloadSchedule, run_offload
from tests.crash.points import POINTS
from tests.crash.runner import CLIENTS, start_runner
from tests.crash.scenario import Judgement, judge, judge_restated, make_scenario, send_newer

# A run of this size takes about as long; later moments would kill nothing.
_LATEST_MOMENT = 1.5
_RUN_SECONDS = 150


@dataclass(frozen=True)
class Kill:
    """One kill: at a named point (`point:n`), or `moment` seconds after the start."""

    point: str = ""
    moment: float = 0.0

    def __str__(self) -> str:
        return self.point or f"{self.moment:.3f} s"


@dataclass(frozen=True)
class Schedule:
    """One to three kills, all from one seed."""

    seed: int
    kills: tuple[Kill, ...]
    writer: str
    client: str

    @classmethod
    def draw(cls, seed: int) -> Schedule:
        """The schedule of a seed, the same on every machine."""
        chance = random.Random(seed)
        kills = []
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.6:
                kills.append(Kill(point=f"{chance.choice(POINTS)}:{chance.randint(1, 4)}"))
            else:
                kills.append(Kill(moment=chance.uniform(0.0, _LATEST_MOMENT)))
        writer = chance.choice(["transactional", "stumbling"])
        return cls(seed, tuple(kills), writer, chance.choice(CLIENTS))

    def __str__(self) -> str:
        kills = ", ".join(map(str, self.kills))
        return f"seed {self.seed}: {self.writer} by {self.client}, killed at {kills}"


@dataclass(frozen=True)
class Verdict:
    """What became of a schedule; `ended` says that the last run, without a kill, did."""

    judgement: Judgement
    killed: int
    ended: bool

    @property
    def is_good(self) -> bool:
        """The same set, and the recovery came to its end."""
        return self.ended and self.judgement.is_same_set


def run_schedule(bootstrap: str, directory: Path, schedule: Schedule) -> Verdict:
    """Runs one schedule on a topic of its own."""
    chance = random.Random(schedule.seed)
    scenario = make_scenario(
        bootstrap,
        directory,
        canary=chance.random() < 0.3,
        transaction_timeout_ms=10_000,
        wave_chunks=chance.choice((1, 20)),
        gone=["0.0.0", "1.1.1"] if chance.random() < 0.5 else None,
    )
    job = scenario.job
    moves_on = job.follows is not None
    killed = 0
    for kill in schedule.kills:
        how = {"writer": schedule.writer, "client": schedule.client}
        process = start_runner(directory, crash_at=kill.point, **how)
        if moves_on:
            send_newer(job, chance, 20)
        process.join(kill.moment if not kill.point else _RUN_SECONDS)
        if process.is_alive():
            kill_process(process)
        process.join(_RUN_SECONDS)
        killed += process.exitcode is not None and process.exitcode < 0
    last = start_runner(directory, writer=schedule.writer, client=schedule.client)
    if moves_on:
        send_newer(job, chance, 20)
    last.join(_RUN_SECONDS)
    ended = last.exitcode == 0
    if last.is_alive():
        kill_process(last)
    return Verdict(judge_restated(job) if moves_on else judge(job), killed, ended)


# How a schedule of each kind is drawn, and run.
KINDS: dict[str, tuple[Callable[[int], Any], Callable[[str, Path, Any], Any]]] = {
    "injection": (Schedule.draw, run_schedule),
    "expansion": (ExpandSchedule.draw, run_expansion),
    "offload": (OffloadSchedule.draw, run_offload),
    "delivery": (DeliverySchedule.draw, run_alone),
}


@contextmanager
def broker_away(kafka: EmbeddedKafka, chance: random.Random) -> Iterator[list[int]]:
    """One of three brokers is killed at some moment, and comes back; yields those that were: none
    where the work had ended before that moment."""
    broker, at = chance.randint(1, 3), chance.uniform(0, chance.choice((3, 30)))
    away = chance.uniform(0.3, 12)
    ended, struck = threading.Event(), list[int]()

    def act() -> None:
        if not ended.wait(at):
            struck.append(broker)
            kafka.kill(broker)
            time.sleep(away)
            kafka.restart(broker)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield struck
    finally:
        ended.set()
        thread.join()


def main(arguments: list[str] | None = None) -> int:
    """Runs random schedules; returns how many went wrong, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10, help="how many schedules of each kind")
    parser.add_argument("--seed", type=int, default=None, help="of the first one")
    parser.add_argument("--only", choices=sorted(KINDS), help="one kind")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    options = parser.parse_args(arguments)
    first = options.seed if options.seed is not None else random.randrange(1_000_000)
    kinds = [options.only] if options.only else list(KINDS)
    with tempfile.TemporaryDirectory(prefix="backlog-crash-") as scratch:
        root = Path(scratch)
        count = options.brokers
        safe = {"default.replication.factor": "3", "min.insync.replicas": "2"} if count > 1 else {}
        place = root / "kafka"
        with EmbeddedKafka.start(place, brokers=count, properties=safe, heap="384m") as kafka:
            return max(_run_all(kind, kafka, root, first, options.n) for kind in kinds)


def _run_all(kind: str, kafka: EmbeddedKafka, root: Path, first: int, n: int) -> int:
    draw, run = KINDS[kind]
    bad, killed, brokers, began = [], 0, 0, time.monotonic()
    several = len(kafka.pids) > 1
    for seed in range(first, first + n):
        schedule = draw(seed)
        if several and isinstance(schedule, DeliverySchedule):
            schedule = replace(schedule, broker="")  # not on one of its own: one of these dies
        directory = root / f"{kind}-{seed}"
        directory.mkdir()
        away = broker_away(kafka, random.Random(seed)) if several else nullcontext(list[int]())
        with away as struck:
            verdict = run(kafka.bootstrap, directory, schedule)
        killed += verdict.killed
        brokers += len(struck)
        print(f"{'ok  ' if verdict.is_good else 'FAIL'} {schedule}", end="", flush=True)
        print("".join(f"; broker {number} killed" for number in struck), flush=True)
        if not verdict.is_good:
            bad.append(seed)
            print(f"     {verdict}", flush=True)
            for failure in directory.glob("error-*.json"):
                print(f"     {failure.read_text()}", flush=True)
    seconds = time.monotonic() - began
    struck_by = f"{killed} kills" + (f", {brokers} of {n} brokers' kills" if several else "")
    print(f"{kind}: {n - len(bad)} of {n} schedules good, {struck_by} struck, {seconds:.0f} s")
    for seed in bad:
        print(f"to see it again: make crash N=1 SEED={seed} ARGS='--only {kind}'")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
