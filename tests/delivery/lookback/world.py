"""A service that is asked, one instance of look-back in this process, and what came out of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from sqlalchemy import select, text, update

from backlog.errors import BacklogError
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
    Database,
    day_bounds,
    list_partitions,
    name_partition,
)
from backlogctl_delivery.stamps import EVENT_ID, find_header
from tests.kafka_tools import read_all

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
            try:
                for _ in range(10 << 4):
                    if kind == "drip" and answerer.released.wait(0.1):
                        return
                    piece = b" " if kind == "drip" else b" " * (1 << 16)
                    self.wfile.write(piece)
                    self.wfile.flush()
                    answerer.written += len(piece)
            except OSError:
                pass  # it was hung up on

        def _send_headers(self) -> None:
            self.send_response(200)
            try:
                for number in range(1 << 20):
                    self.send_header(f"x-{number}", "x" * 1000)
                    self.flush_headers()
            except OSError:
                pass  # it was hung up on

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

    database: Database
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

    def tell(self, value: bytes | None, *, offset: int | None = None) -> Any:
        if offset is None:
            self.offset += 1
            offset = self.offset
        record = Record(self.settings.topic, 0, offset, value)
        return apply_records(self.database, self.settings, [record])

    def find(self, biz_id: str) -> dict[str, Any]:
        """The row of a message, and how it stands with what the outbox has of it."""
        made = make_id(self.settings.topic, "payment", biz_id)
        with self.database.read() as connection:
            row = connection.execute(select(MESSAGES).where(MESSAGES.c.id == made)).mappings().one()
        shown = show_message(self.database, made)
        del shown["incidents"]
        return {**row, **shown}

    def change(self, biz_id: str, **values: Any) -> None:
        """As time would, or an operator."""
        made = make_id(self.settings.topic, "payment", biz_id)
        with self.database.write() as connection:
            connection.execute(update(MESSAGES).where(MESSAGES.c.id == made).values(values))

    def find_sending(self, biz_id: str) -> Any:
        """Its row of the outbox."""
        made = make_id(self.settings.topic, "payment", biz_id)
        with self.database.read() as connection:
            return connection.execute(select(OUTBOX).where(OUTBOX.c.message_id == made)).one()

    def change_sending(self, biz_id: str, **values: Any) -> None:
        """As time would."""
        made = make_id(self.settings.topic, "payment", biz_id)
        with self.database.write() as connection:
            connection.execute(update(OUTBOX).where(OUTBOX.c.message_id == made).values(values))

    def state(self, biz_id: str) -> str:
        return str(self.find(biz_id)["state"])


@contextmanager
def run_instance(
    database: Database, settings: LookBackSettings, bootstrap: str, said: list[Any] | None = None
) -> Iterator[Service]:
    """One instance in a thread; its failure is the test's."""
    told: list[Any] = [] if said is None else said

    def say(part: str, error: BacklogError | None) -> None:
        told.append((part, error))

    service = Service(database, settings, {"bootstrap.servers": bootstrap}, say)
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            service.run(stop)
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield service
    finally:
        stop.set()
        thread.join(120)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def read_ids(bootstrap: str, topic: str, partitions: int = 2) -> dict[str, list[str]]:
    """What came out: the message ids by key."""
    found: dict[str, list[str]] = {}
    for message in read_all({"bootstrap.servers": bootstrap}, topic, range(partitions)):
        key = (message.key() or b"").decode()
        headers: Any = message.headers()
        found.setdefault(key, []).append(find_header(headers, EVENT_ID) or "")
    return found


def add_old(database: Database, count: int, state: State, day: date = date(2020, 2, 29)) -> None:
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
