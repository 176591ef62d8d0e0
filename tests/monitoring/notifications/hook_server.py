"""A hook's server, and what is sent to it."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from backlogctl.config import Hook
from backlogctl.monitoring.notifications.changes import StreamObservation
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from tests.monitoring.test_metrics import make_status


@dataclass(frozen=True)
class Request:
    """One that came; `at` by the monotonic clock."""

    path: str
    headers: Mapping[str, str]
    body: str
    at: float

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What is answered; `hangs` first waits so many seconds."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = "ok"
    hangs: float = 0.0


OK = Reply()


class HookServer:
    """Answers each request with `answer(request)`."""

    def __init__(
        self, answer: Callable[[Request], Reply], tls: tuple[Path, Path] | None, port: int
    ) -> None:
        self.requests: list[Request] = []
        self.answer = answer
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                request = Request(self.path, dict(self.headers), body, time.monotonic())
                outer.requests.append(request)
                reply = outer.answer(request)
                outer.ended.wait(reply.hangs)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body.encode())))
                self.end_headers()
                self.wfile.write(reply.body.encode())

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Who asked has gone."""

        self.server = Server(("127.0.0.1", port), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    @property
    def documents(self) -> list[Any]:
        return [request.document for request in self.requests]


@contextmanager
def serve_hook(
    answer: Callable[[Request], Reply] = lambda _: OK,
    tls: tuple[Path, Path] | None = None,
    port: int = 0,
) -> Iterator[HookServer]:
    found = HookServer(answer, tls, port)
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        found.server.shutdown()
        found.server.server_close()
        thread.join(30)


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself; and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


NOW = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
COMMAND = "backlogctl consumers status orders"


def make_look(verdict: Verdict, stream: str = "orders", **changes: Any) -> GroupStatus:
    """A stream's status with that verdict."""
    told: dict[str, Any] = {
        "verdict": verdict,
        "course": Verdict.OK if verdict is Verdict.LOST else verdict,
        "sentence": f"{stream}/0: this is {verdict}",
        "next_commands": () if verdict is Verdict.OK else (COMMAND,),
        "taken_at": NOW,
        **changes,
    }
    return replace(make_status(stream=stream), **told)


def see(verdict: Verdict, stream: str = "orders", **changes: Any) -> StreamObservation:
    return StreamObservation.of_status(make_look(verdict, stream, **changes))


def make_hook(**document: Any) -> Hook:
    """A hook as backlog.yaml describes it."""
    return Hook.model_validate(document)
