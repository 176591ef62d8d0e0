"""The worlds of delivery: an application with an outbox, one with marks, look-back and who answers it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, Self

import pytest
import redis
import sqlalchemy as sa
from confluent_kafka import Message, Producer
from sqlalchemy import create_engine, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import Admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.idempotent.redis import RedisMarks
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.lookback.admin import show_message
from backlogctl_delivery.lookback.asker import make_checker
from backlogctl_delivery.lookback.checkers import Answer, Question
from backlogctl_delivery.lookback.intake import Record, apply_records
from backlogctl_delivery.lookback.messages import (
    Decided,
    Event,
    Prepared,
    State,
    make_id,
    write_envelope,
)
from backlogctl_delivery.lookback.service import Service
from backlogctl_delivery.lookback.settings import LookBackSettings, ServiceSettings
from backlogctl_delivery.lookback.tables import (
    MESSAGES,
    OUTBOX,
    LookBackDatabase,
    day_bounds,
    list_partitions,
    name_partition,
)
from backlogctl_delivery.outbox import Outbox, OutboxSender, Settings, claims
from backlogctl_delivery.outbox.claims import Claims
from backlogctl_delivery.outbox.database import OutboxDatabase, messages
from backlogctl_delivery.sequenced.checker import SequenceChecker, SequenceVerdict
from backlogctl_delivery.sequenced.sequence import Stamp, read_stamp
from backlogctl_delivery.stamps import EVENT_ID, find_header
from tests.kit.disks import doing
from tests.kit.kafka import properties_of, read_all, wait_until


class Crash(BaseException):
    """As SIGKILL: nothing handles it."""


@contextmanager
def crashing_at(point: str) -> Iterator[None]:
    """An outbox's sender dies there."""

    def reach(name: str) -> None:
        if name == point:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "reach", reach)
        with pytest.raises(Crash):
            yield


FAST = Settings(scan_every=timedelta(seconds=0.05), first_interval=timedelta(seconds=0.1))


class Shop:
    """Writes orders; sends them when it is told to."""

    def __init__(self, url: str, bootstrap: str) -> None:
        self.url, self.bootstrap = url, bootstrap
        self.engine = create_engine(url)
        self.outbox = Outbox(self.engine)
        self.outbox.create()
        self.database = OutboxDatabase(url)

    def add(self, topic: str, *keys: str | None, **named: Any) -> list[str]:
        """Commits one message for each key, whose values are their order; returns their ids."""
        with Session(self.engine) as session, session.begin():
            return [
                self.outbox.add(session, topic=topic, key=key, value=str(number), **named)
                for number, key in enumerate(keys)
            ]

    def make_claims(self, **changes: Any) -> Claims:
        """Another sender's claims."""
        given: dict[str, Any] = {
            "lease": timedelta(seconds=60),
            "most": 500,
            "most_of_key": 100,
            "first_interval": timedelta(seconds=1),
            "longest_interval": timedelta(minutes=5),
        }
        return Claims(**{"database": self.database, **given, **changes})

    def make_sender(
        self, settings: Settings = FAST, kafka: Mapping[str, Any] | None = None
    ) -> OutboxSender:
        return OutboxSender(self.url, {**properties_of(self.bootstrap), **(kafka or {})}, settings)

    @contextmanager
    def sending(self, *arguments: Any, **named: Any) -> Iterator[OutboxSender]:
        """A sender at work."""
        sender = self.make_sender(*arguments, **named)
        sender.start()
        try:
            yield sender
        finally:
            sender.close()

    def list_rows(self, *columns: str) -> list[Any]:
        """The table, in the order of ids."""
        chosen = [messages.c[name] for name in columns or ("id", "state")]
        with self.engine.connect() as connection:
            return [
                tuple(row) for row in connection.execute(select(*chosen).order_by(messages.c.id))
            ]

    def count(self, state: str) -> int:
        return sum(row[0] == state for row in self.list_rows("state"))

    def await_sent(self, number: int) -> None:
        wait_until(lambda: self.count("sent") == number, what=f"{number} are sent")

    def read(self, topic: str, partitions: int = 1) -> list[Message]:
        return read_all(properties_of(self.bootstrap), topic, range(partitions))

    def read_ids(self, topic: str, partitions: int = 1) -> list[str | None]:
        return [read_id(message) for message in self.read(topic, partitions)]

    def close(self) -> None:
        self.outbox.close()
        self.database.close()
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_id(message: Message) -> str | None:
    """The id by which a consumer drops a repeat."""
    return find_header(message.headers(), EVENT_ID)  # type: ignore[arg-type]


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    order: Mapped[str] = mapped_column(sa.String(40))
    amount: Mapped[int] = mapped_column(sa.CheckConstraint("amount > 0"))


class WorkFailed(Exception):
    pass


def make_marks(client: redis.Redis, consumer: str, **settings: Any) -> RedisMarks:
    """Marks in Redis that last for minutes, and never wait."""
    long = timedelta(minutes=5)
    given = {"lease": long, "keep": long, "when_away": "closed", "wait": timedelta(0), **settings}
    return RedisMarks(client, consumer, **given)


def make_message(*headers: tuple[str, bytes | None]) -> Message:
    return Message(topic="orders", partition=2, offset=17, value=b"v", headers=list(headers))


def pay(marks: Marks, session: Session, message: Any, amount: int = 1) -> bool:
    with marks.handle_once(session, message) as attempt:
        if attempt.is_first:
            session.add(Payment(order=attempt.message_id, amount=amount))
            return True
    return False


def counted(marks: Marks | RedisMarks) -> dict[str, int]:
    """What came of messages, by outcome; none is left out."""
    return {outcome: count for outcome, count in marks.counts.read().items() if count}


def list_orders(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(Payment.order)).scalars())


def list_marks(engine: sa.Engine, marks: Marks) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(marks.table.c.message_id)).scalars())


LOOPBACK = ("127.0.0.0/8", "::1/128")
NEVER = timedelta(days=365)


def make_settings(**changes: Any) -> LookBackSettings:
    """Settings with which nothing waits long, and nobody is asked before a year has gone."""
    soon = timedelta(milliseconds=1)
    base = LookBackSettings(first_check=NEVER, pause=soon, longest_pause=soon)
    return replace(base, **changes)


def make_service(url: str, **changes: Any) -> ServiceSettings:
    """A service on this machine that is asked by HTTP."""
    return ServiceSettings(http=url, **{"networks": LOOPBACK, **changes})


@dataclass
class Answerer:
    """A service: says what `statuses` has, else `unknown`; at other paths it misbehaves."""

    url: str = ""
    statuses: dict[str, str] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    hosts: list[str] = field(default_factory=list)
    on_ask: Callable[[str], None] = lambda _: None
    released: threading.Event = field(default_factory=threading.Event)
    written: int = 0
    raw: bytes = b""


@contextmanager
def serve_answers() -> Iterator[Answerer]:
    """The service, on a free port."""
    answerer = Answerer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answerer.hosts.append(self.headers["Host"])
            answerer.asked[body["biz_id"]] += 1
            answerer.on_ask(body["biz_id"])
            kind, _, rest = self.path.strip("/").partition("/")
            if kind == "status":
                self._send(int(rest), b'{"status":"rolled_back"}')
            elif kind == "redirect":
                self.send_response(307)
                self.send_header("Location", f"{answerer.url}/ok")
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif kind == "hang":
                answerer.released.wait(120)
            elif kind in ("huge", "drip"):
                self._send_long(kind)
            elif kind == "headers":
                self._send_headers()
            elif kind == "raw":
                self._send(200, answerer.raw)
            else:
                status = answerer.statuses.get(body["biz_id"], "unknown")
                self._send(200, json.dumps({"status": status}).encode())

        def _send_long(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(10 << 20))
            self.end_headers()
            piece = b" " if kind == "drip" else b" " * (1 << 16)
            with suppress(OSError):  # it was hung up on
                for _ in range(10 << 4):
                    if kind == "drip" and answerer.released.wait(0.1):
                        return
                    self.wfile.write(piece)
                    self.wfile.flush()
                    answerer.written += len(piece)

        def _send_headers(self) -> None:
            self.send_response(200)
            with suppress(OSError):  # it was hung up on
                for number in range(1 << 20):
                    self.send_header(f"x-{number}", "x" * 1000)
                    self.flush_headers()

        def _send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    answerer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield answerer
    finally:
        answerer.released.set()
        server.shutdown()
        server.server_close()


class ServeGrpc(Protocol):
    """Starts a gRPC server that answers by a function; gives its address."""

    def __call__(self, answer: Callable[[str, str], str], padding: int = 0) -> str: ...


def make_grpc(address: str, **changes: Any) -> ServiceSettings:
    """A service on this machine that is asked by gRPC."""
    return ServiceSettings(grpc=address, tls=False, **{"networks": LOOPBACK, **changes})


def ask(service: ServiceSettings, *biz_ids: str) -> Answer:
    """Asks about each, by one checker; gives the last answer."""

    async def work() -> Answer:
        checker = make_checker(service)
        try:
            for biz_id in biz_ids or ("1",):
                answer = await checker.ask(Question("payment", biz_id))
            return answer
        finally:
            await checker.close()

    return asyncio.run(work())


@dataclass
class Teller:
    """Feeds records into the tables as the intake does, without Kafka."""

    database: LookBackDatabase
    settings: LookBackSettings
    offset: int = 0

    def prepare(
        self, biz_id: str, *, service: str = "payments", topic: str = "out", **more: Any
    ) -> None:
        made = Prepared(
            "payment",
            biz_id,
            service,
            topic,
            biz_id.encode(),
            more.get("value", b"v"),
            more.get("headers", ()),
        )
        self.tell(write_envelope(made))

    def commit(self, biz_id: str) -> None:
        self._decide(Event.COMMITTED, biz_id)

    def roll_back(self, biz_id: str) -> None:
        self._decide(Event.ROLLED_BACK, biz_id)

    def _decide(self, event: Event, biz_id: str) -> None:
        self.tell(write_envelope(Decided(event, "payment", biz_id)))

    def tell(self, value: bytes | None) -> Any:
        self.offset += 1
        record = Record(self.settings.topic, 0, self.offset, value)
        return apply_records(self.database, self.settings, [record])

    def find(self, biz_id: str) -> dict[str, Any]:
        """The row of a message, and how it stands with what the outbox has of it."""
        made = self.find_id(biz_id)
        with self.database.read() as connection:
            row = connection.execute(select(MESSAGES).where(MESSAGES.c.id == made)).mappings().one()
        shown = show_message(self.database, made)
        del shown["incidents"]
        return {**row, **shown}

    def change(self, biz_id: str, **values: Any) -> None:
        """As time would, or an operator."""
        chosen = update(MESSAGES).where(MESSAGES.c.id == self.find_id(biz_id))
        with self.database.write() as connection:
            connection.execute(chosen.values(values))

    def find_sending(self, biz_id: str) -> Any:
        """Its row of the outbox."""
        chosen = select(OUTBOX).where(OUTBOX.c.message_id == self.find_id(biz_id))
        with self.database.read() as connection:
            return connection.execute(chosen).one()

    def change_sending(self, biz_id: str, **values: Any) -> None:
        """As time would."""
        chosen = update(OUTBOX).where(OUTBOX.c.message_id == self.find_id(biz_id))
        with self.database.write() as connection:
            connection.execute(chosen.values(values))

    def find_id(self, biz_id: str) -> str:
        return make_id(self.settings.topic, "payment", biz_id)

    def state(self, biz_id: str) -> str:
        return str(self.find(biz_id)["state"])


@contextmanager
def run_instance(
    database: LookBackDatabase,
    settings: LookBackSettings,
    bootstrap: str,
    said: list[Any] | None = None,
) -> Iterator[Service]:
    """One instance in a thread; its failure is the test's."""
    told: list[Any] = [] if said is None else said

    def say(part: str, error: BacklogError | None) -> None:
        told.append((part, error))

    service = Service(database, settings, {"bootstrap.servers": bootstrap}, say)
    stop = threading.Event()
    with doing(lambda: service.run(stop)):
        try:
            yield service
        finally:
            stop.set()


def read_ids(bootstrap: str, topic: str, partitions: int = 2) -> dict[str, list[str]]:
    """What came out: the message ids by key."""
    found: dict[str, list[str]] = {}
    for message in read_all({"bootstrap.servers": bootstrap}, topic, range(partitions)):
        key = (message.key() or b"").decode()
        headers: Any = message.headers()
        found.setdefault(key, []).append(find_header(headers, EVENT_ID) or "")
    return found


def add_old(
    database: LookBackDatabase, count: int, state: State, day: date = date(2020, 2, 29)
) -> None:
    """Messages in that state since a day long ago, with its partition."""
    at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    with database.write() as connection:
        if not database.is_sqlite and day not in list_partitions(connection):
            start, end = day_bounds(day)
            connection.execute(
                text(
                    f"CREATE TABLE {name_partition(day)} PARTITION OF look_back_messages "
                    f"FOR VALUES FROM ('{start}') TO ('{end}')"
                )
            )
        rows = [
            {
                "id": f"{day:%y%m%d}-{state}-{number}",
                "created_at": at + timedelta(seconds=number),
                "biz_type": "payment",
                "biz_id": str(number),
                "state": state.value,
                "topic": "out",
                "value": b"\x00v",
                "headers": [["type", None]],
                "next_at": at,
                "checks": 0,
            }
            for number in range(count)
        ]
        connection.execute(MESSAGES.insert(), rows)


def make_bare(bootstrap: str, **settings: Any) -> Producer:
    """The application's producer. Its topics were made a moment ago."""
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 200,
            **dotted,
        }
    )


def read_by_partition(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Message]]:
    found: dict[int, list[Message]] = defaultdict(list)
    for message in read_all({"bootstrap.servers": bootstrap}, topic, range(partitions)):
        found[message.partition() or 0].append(message)
    return found


def read_stamps(bootstrap: str, topic: str, partitions: int = 1) -> dict[int, list[Stamp]]:
    """The stamps of every partition, in the order of its log."""
    found: dict[int, list[Stamp]] = {}
    for partition, read in read_by_partition(bootstrap, topic, partitions).items():
        found[partition] = []
        for message in read:
            stamp = read_stamp(message.headers())  # type: ignore[arg-type]
            assert stamp is not None
            found[partition].append(stamp)
    return found


def check_all(bootstrap: str, topic: str, partitions: int = 1) -> SequenceChecker:
    """A consumer that read all of it."""
    checker = SequenceChecker(reads_from_start=True)
    for read in read_by_partition(bootstrap, topic, partitions).values():
        for message in read:
            assert checker.check(message) in (SequenceVerdict.NEW, SequenceVerdict.END_MARK)
    return checker


def make_topic_on(kafka: EmbeddedKafka, name: str) -> str:
    """One of a test's own; returns its name."""
    name = f"{name}-{uuid.uuid4().hex[:8]}"
    admin = Admin({"bootstrap.servers": kafka.bootstrap})
    create_topic(admin, name, partitions=1, replication=1, config={}, deadline=Deadline(60))
    return name


def list_own(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of our own loggers."""
    return [
        one
        for one in caplog.records
        if one.name.partition(".")[0] in ("backlogctl", "backlogctl_delivery")
    ]
