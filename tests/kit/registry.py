"""A real schema registry, Apicurio's, and what counts the writes that reach it."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from backlogctl.jars import cache_dir, find_java, make_once
from backlogctl.sandbox.secured import HOST, free_port
from tests.kit.services import Server

_VERSION = "3.0.9"  # newer ones want Java 21
_PATH = f"io/apicurio/apicurio-registry-app/{_VERSION}/apicurio-registry-app-{_VERSION}-all.tar.gz"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_RUNNER = f"apicurio-registry-app-{_VERSION}-runner.jar"
_TIMEOUT = 30.0


def ensure_apicurio() -> Path:
    """Its folder; fetched from Maven Central at the first call on this machine, 109 MB."""
    final = cache_dir() / "jars" / f"apicurio-{_SHA256[:12]}"
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        make_once(final, _fetch)
    return final


def _fetch(work: Path) -> None:
    packed = work / "packed"
    url = f"https://repo1.maven.org/maven2/{_PATH}"
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, packed.open("wb") as file:
        shutil.copyfileobj(answer, file)
    assert hashlib.sha256(packed.read_bytes()).hexdigest() == _SHA256
    with tarfile.open(packed) as archive:
        archive.extractall(work, filter="data")
    packed.unlink()


class EmbeddedRegistry(Server):
    """A registry that keeps all in memory."""

    @property
    def url(self) -> str:
        """Its Confluent-compatible address."""
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def start(self) -> Self:
        """Starts it on a free port."""
        self.port = free_port()
        jar = ensure_apicurio() / _RUNNER
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        bound = (f"-Dquarkus.http.port={self.port}", f"-Dquarkus.http.host={HOST}")
        return self._launch(str(find_java()), *options, *bound, "-jar", str(jar))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects") as answer:
            return bool(answer.status == 200)
        return False


@contextlib.contextmanager
def counting_writes(url: str) -> Iterator[tuple[str, list[str]]]:
    """An address that hands everything on to the registry, and what reached it but reads."""
    writes: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                with urllib.request.urlopen(url + self.path, timeout=_TIMEOUT) as answer:
                    status, body = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, body = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _refuse(self) -> None:
            writes.append(f"{self.command} {self.path}")
            self.send_error(405)

        do_POST = do_PUT = do_DELETE = _refuse  # noqa: N815 - the names of http.server

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with _serving(Handler) as address:
        yield address, writes


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """An address that answers each request so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with _serving(Handler) as address:
        yield address


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer((HOST, 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_TIMEOUT)
