"""What is said of groups of real clients, beside what they handled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from backlogctl.ledger import Ledger, open_ledger
from backlogctl.monitoring.offsets.commits import CommitFeed
from backlogctl.monitoring.offsets.history import StreamHistory
from backlogctl.monitoring.offsets.observation import Observation, observe_stream
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Cause, Certainty, Gap
from tests.clients.table import FILE
from tests.clients.test_recoveries import LETTERS, MEMBERS, TOGETHER
from tests.clients.zoo import JOBS, KINDS, Client
from tests.conftest import MakeTopic
from tests.kit.kafka import StreamStub, move_log_start, properties_of, publish

# They commit what they have handled, as often as they are told to.
READERS = ("java-range", "java-map", "java-assign", "java-kip848", "franz", "kafkajs", "librdkafka")
PER_SECOND = 50


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        yield opened


def fill(kafka: EmbeddedKafka, name: str) -> None:
    """60,000 messages of 1 KB: more than most clients fetch ahead."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50})
    for number in range(60_000):
        producer.produce(name, str(number).zfill(1024).encode(), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


class Watched:
    """One stream, by the commit log or by samples alone."""

    def __init__(self, ledger: Ledger, stream: StreamStub, kafka: EmbeddedKafka, by_log: bool):
        self.ledger, self.stream = ledger, stream
        self.properties = properties_of(kafka.bootstrap)
        self.feed = CommitFeed(self.properties, [stream]) if by_log else None
        self.history: StreamHistory | None = None

    def look(self) -> Observation:
        seen = observe_stream(
            *(self.ledger, self.stream, self.properties),
            history=self.history,
            settle=False,
            feed=self.feed,
        )
        self.history = seen.history
        return seen

    def list_gaps(self) -> tuple[Gap, ...]:
        """Those with a range."""
        return tuple(gap for gap in self.ledger.gaps.list(self.stream.name) if gap.end is not None)


@pytest.mark.parametrize("kind", JOBS)
def test_fault_88_a_job_that_comes_by_has_skipped_nothing(
    kind: str, kafka: EmbeddedKafka, topic: MakeTopic, group: str, ledger: Ledger, tmp_path: Path
) -> None:
    name = topic(partitions=1)
    by_log = Watched(ledger, StreamStub(name, group, name=f"{group}-log"), kafka, by_log=True)
    by_samples = Watched(ledger, StreamStub(name, group, name=f"{group}-samples"), kafka, False)
    for visit in range(4):
        publish(by_log.properties, name, {0: 1000})
        job = Client(kind, kafka.bootstrap, name, group, record=tmp_path / str(visit), once=True)
        with job:
            job.wait()
        assert len(set(job.handled())) == 1000
        assert by_log.look().by_log
        by_samples.look()
        assert by_log.list_gaps() == ()
        # By samples nobody knows who that was, until it goes on.
        possible = {gap.certainty for gap in by_samples.list_gaps()}
        assert possible <= {Certainty.POSSIBLE}
    assert all(gap.state == "waived" for gap in by_samples.list_gaps())


@pytest.mark.timeout(300)
def test_fault_89_what_live_clients_lost_is_told_by_the_commit_log(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """All read one topic, each in a group of its own; retention jumps ahead of them three times."""
    name = topic(partitions=1)
    for kind in READERS:
        record_property("client", kind)
    fill(kafka, name)
    with ExitStack() as stack:
        clients, watched = {}, {}
        for kind in READERS:
            of = f"{group}-{kind}"
            clients[kind] = stack.enter_context(
                Client(
                    *(kind, kafka.bootstrap, name, of),
                    record=tmp_path / kind,
                    delay_ms=1000 // PER_SECOND,
                    commit_ms=2000,
                )
            )
            watched[kind] = Watched(ledger, StreamStub(name, of, name=of), kafka, by_log=True)
        for client in clients.values():
            client.await_handled(100)
        began, jumps = time.monotonic(), [15_000, 30_000, 45_000]
        while time.monotonic() < began + 115:
            for one in watched.values():
                one.look()
            if jumps and time.monotonic() > began + 70 + 12 * (3 - len(jumps)):
                move_log_start(properties_of(kafka.bootstrap), name, {0: jumps.pop(0)})
        for client in clients.values():
            client.kill()
        told = {kind: one.look() for kind, one in watched.items()}
    for kind, client in clients.items():
        handled = {offset for _, offset in client.handled()}
        lost = set(range(max(handled))) - handled
        gaps = [gap for gap in watched[kind].list_gaps() if gap.cause is Cause.EXPIRED]
        covered = {at for gap in gaps for at in range(gap.start or 0, gap.end or 0)}
        undecided = sum(told[kind].undecided.values())
        likely = sum(gap.likely or 0 for gap in gaps)
        print(f"{kind}: lost {len(lost):,}, likely {likely:,}, undecided {undecided:,}")
        for gap in gaps:
            print("   ", gap.certainty, gap.start, gap.end, gap.likely, gap.reason)
        assert len(lost - covered) <= undecided, kind
        assert likely <= 1.05 * len(lost) + PER_SECOND * 5, kind
        at_most = sum(gap.count or 0 for gap in gaps)
        assert at_most + undecided >= len(lost), kind


def test_every_kind_is_known() -> None:
    assert {*JOBS, *READERS} <= KINDS.keys()


def test_the_page_of_clients_is_of_those_that_are_locked() -> None:
    page = FILE.read_text()
    for name, kind in KINDS.items():
        assert f"| {kind.language}: {kind.library}, {name} | {kind.version} |" in page
    assert "wrong" not in page
    put_back = sum(map(len, TOGETHER.values()))
    cells = len(KINDS) + len(JOBS) + len(READERS) + len(MEMBERS) + put_back + 2 * len(LETTERS)
    assert page.count("right") == cells + 1, "one stands in the text"
