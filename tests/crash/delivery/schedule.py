"""Random bad days of a chain of outbox, look-back and consumer, on databases of their own."""

from __future__ import annotations

import atexit
import functools
import random
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from backlogctl.sandbox.embedded import EmbeddedKafka
from examples.delivery.facts import Audit, audit_facts
from tests.crash.delivery.chain import (
    APPLICATION,
    INSTANCES,
    READER,
    READERS,
    SENDERS,
    Chain,
    LookBackChain,
    OutboxChain,
)
from tests.crash.points import (
    ADDING_POINTS,
    CONSUMER_POINTS,
    FAILING_POINTS,
    HINT_POINTS,
    KEEPER_POINTS,
    LOOK_BACK_POINTS,
    PREPARING_POINTS,
    SENDER_POINTS,
)
from tests.kit.services import EmbeddedMariaDb, EmbeddedPostgres

LOOK_BACK = "look-back"
# By the database of the outbox; look-back is on PostgreSQL.
CHAINS = ("postgresql", "mariadb", "sqlite", LOOK_BACK)
_LATEST_MOMENT = 1.5
_BROKER = ("", "", "restarted", "killed")


@dataclass(frozen=True)
class Blow:
    """One process is killed at a point, for which `moment` seconds are waited; or some, after as
    many; or one is paused for longer than its lease; or killed when look-back's day changes; or
    MariaDB ends a transaction of one of them by a deadlock."""

    names: tuple[str, ...]
    point: str = ""
    moment: float = 0.0
    is_pause: bool = False
    is_midnight: bool = False
    is_deadlock: bool = False

    def __str__(self) -> str:
        told = self.names[0] if len(self.names) == 1 else "all"
        if self.is_deadlock:
            return f"{self.names[0]} in a deadlock"
        if self.is_midnight:
            return f"{told} at midnight"
        if self.is_pause:
            return f"{told} paused"
        return f"{told} at {self.point or f'{self.moment:.2f} s'}"


@dataclass(frozen=True)
class DeliverySchedule:
    """Three to seven blows.

    Attributes:
        sends: the application sends its outbox by itself.
        broker: what becomes of it after half of the blows: "", "restarted", "killed".
        replays: at the end somebody sets the consumers' group back to the beginning.
        purges: the marks are gone by then.
    """

    seed: int
    chain: str
    sends: bool
    blows: tuple[Blow, ...]
    broker: str
    replays: bool = False
    purges: bool = False

    @classmethod
    def draw(cls, seed: int) -> DeliverySchedule:
        """The schedule of a seed, the same on every machine; four of them go through all chains."""
        return cls.draw_of(CHAINS[seed % len(CHAINS)], seed)

    @classmethod
    def draw_of(cls, chain: str, seed: int) -> DeliverySchedule:
        """One of that chain."""
        chance = random.Random(seed)
        sends, broker = chance.random() < 0.5, chance.choice(_BROKER)
        points = list_points(chain, sends, fails=bool(broker))
        names = tuple(points)
        blows: list[Blow] = []
        for _ in range(chance.randint(3, 6)):
            kind, name = chance.random(), chance.choice(names)
            if kind < 0.15:
                blows.append(Blow(names, moment=chance.uniform(0.2, _LATEST_MOMENT)))
            elif kind < 0.3:
                blows.append(Blow((name,), is_pause=True))
            elif kind < 0.5 or not points[name]:
                blows.append(Blow((name,), moment=chance.uniform(0.2, _LATEST_MOMENT)))
            else:
                point = f"{chance.choice(points[name])}:{chance.randint(1, 4)}"
                # A keeper looks once when it starts.
                is_once = point.partition(":")[0] in KEEPER_POINTS
                blows.append(Blow((name,), point.partition(":")[0] if is_once else point))
        if chain == LOOK_BACK and chance.random() < 0.7:
            blow = Blow((chance.choice(INSTANCES),), is_midnight=True)
            blows.insert(chance.randint(0, len(blows)), blow)
        replays, purges = chance.random() < 0.5, chance.random() < 0.5
        for names in (list_senders(sends), READERS) if chain == "mariadb" else ():
            blows.insert(chance.randint(0, len(blows)), Blow(names, is_deadlock=True))
        return cls(seed, chain, sends, tuple(blows), broker, replays, replays and purges)

    def __str__(self) -> str:
        told = f"seed {self.seed}: {self.chain}"
        told += ", sends by itself" if self.sends and self.chain != LOOK_BACK else ""
        told += f", {'; '.join(map(str, self.blows))}"
        told += f"; broker {self.broker}" if self.broker else ""
        told += "; read again from the beginning" if self.replays else ""
        return told + (", its marks purged" if self.purges else "")


@dataclass(frozen=True)
class DeliveryVerdict:
    """What became of a schedule.

    Attributes:
        reached: counts points at which a process died.
        forgotten: ids whose marks were purged before they were read again.
    """

    killed: int
    reached: int
    audit: Audit
    problems: tuple[str, ...]
    forgotten: frozenset[str] = frozenset()

    @property
    def is_good(self) -> bool:
        """All that is committed was handled once, what was forgotten twice, and nothing else."""
        is_wrong = any(self._list_wrong().values()) or self.problems
        return self.audit.committed > 0 and not is_wrong

    def _list_wrong(self) -> dict[str, Collection[str]]:
        twice = self.forgotten ^ set(self.audit.twice)
        return {**self.audit.list_wrong(), "twice": twice}

    def __str__(self) -> str:
        wrong = {name: ids for name, ids in self._list_wrong().items() if ids}
        return f"{self.audit.tell('rows')}; {wrong}; {'; '.join(self.problems)}"


def list_senders(sends: bool) -> tuple[str, ...]:
    """Who marks messages as sent, by `sends` of a schedule."""
    return (APPLICATION,) if sends else SENDERS


def list_points(chain: str, sends: bool, *, fails: bool) -> dict[str, tuple[str, ...]]:
    """By process the points that it comes to.

    Args:
        fails: the broker is away for a while.
    """
    sending = SENDER_POINTS + (FAILING_POINTS if fails else ())
    if chain == LOOK_BACK:
        own = dict.fromkeys(INSTANCES, LOOK_BACK_POINTS + sending + KEEPER_POINTS)
        return {APPLICATION: PREPARING_POINTS, **own, READER: CONSUMER_POINTS}
    if sends:
        # The senders have only what a killed application left.
        adding = ADDING_POINTS + HINT_POINTS + sending
        return {APPLICATION: adding, **dict.fromkeys(SENDERS, ()), READER: CONSUMER_POINTS}
    return {
        APPLICATION: ADDING_POINTS,
        **dict.fromkeys(SENDERS, sending),
        READER: CONSUMER_POINTS,
    }


def run_delivery(
    bootstrap: str, directory: Path, schedule: DeliverySchedule, database: str
) -> DeliveryVerdict:
    """Runs one schedule on topics of its own.

    Args:
        bootstrap: of a broker that nothing is done to; where something is, there is another.
        database: URL of an empty one.
    """
    if not schedule.broker:
        return _run(bootstrap, directory, schedule, database, lambda: None)
    with EmbeddedKafka.start(directory / "kafka") as own:

        def strike() -> None:
            if schedule.broker == "killed":
                own.kill()
            own.restart()

        return _run(own.bootstrap, directory, schedule, database, strike)


def _run(
    bootstrap: str,
    directory: Path,
    schedule: DeliverySchedule,
    database: str,
    strike_broker: Callable[[], None],
) -> DeliveryVerdict:
    chain: Chain
    if schedule.chain == LOOK_BACK:
        chain = LookBackChain(bootstrap, directory, database)
    else:
        chain = OutboxChain(bootstrap, directory, database, sends=schedule.sends)
    with chain, ThreadPoolExecutor(1) as aside:
        broker = None
        for number, blow in enumerate(schedule.blows):
            if number == len(schedule.blows) // 2:
                broker = aside.submit(strike_broker)
            if isinstance(chain, LookBackChain) and blow.point in KEEPER_POINTS:
                chain.add_old_day()
            if isinstance(chain, LookBackChain) and blow.is_midnight:
                chain.kill_at_midnight(blow.names[0])
            elif blow.is_deadlock:
                chain.deadlock(blow.names)
            elif blow.is_pause:
                chain.pause(blow.names[0])
            elif blow.point:
                chain.kill_at(blow.names[0], blow.point, blow.moment)
            else:
                chain.kill(blow.names, blow.moment)
        if broker is not None:
            broker.result()
        if schedule.replays:
            chain.replay(purges=schedule.purges)
        audit, problems = audit_facts(chain.read_facts()), tuple(chain.find_problems())
        return DeliveryVerdict(chain.kills, chain.reached, audit, problems, chain.forgotten)


def run_alone(bootstrap: str, directory: Path, schedule: DeliverySchedule) -> DeliveryVerdict:
    """`run_delivery` on a database of its own."""
    return run_delivery(bootstrap, directory, schedule, make_database(schedule.chain, directory))


def make_database(chain: str, directory: Path) -> str:
    """Its URL."""
    name = f"crash_{uuid.uuid4().hex[:8]}"
    if chain == "sqlite":
        return f"sqlite:///{directory / 'shop.db'}"
    server = _start_mariadb() if chain == "mariadb" else _start_postgres()
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@functools.cache
def _start_postgres() -> EmbeddedPostgres:
    server = EmbeddedPostgres().start()
    atexit.register(server.stop)
    return server


@functools.cache
def _start_mariadb() -> EmbeddedMariaDb:
    server = EmbeddedMariaDb().start()
    atexit.register(server.stop)
    return server
