"""Another address of this machine for a port that is there: bytes go through as they are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def forward(host: str, target: tuple[str, int]) -> Iterator[str]:
    """Listens on `host`, passes each connection on; yields `host:port`."""
    with socket.create_server((host, 0)) as server:
        threading.Thread(target=_accept, args=(server, target), daemon=True).start()
        yield f"{host}:{server.getsockname()[1]}"


def _accept(server: socket.socket, target: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            near, _ = server.accept()
            far = socket.create_connection(target)
            threading.Thread(target=_carry, args=(near, far), daemon=True).start()


def _carry(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
        back.start()
        _pass_on(near, far)
        back.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
