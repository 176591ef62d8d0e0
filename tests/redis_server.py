"""A Redis server for the tests: free port, own folder, nothing on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from backlogctl.sandbox import watchdog
from backlogctl.sandbox.secured import HOST, free_port


class EmbeddedRedis:
    """It ends with this process, however that ends."""

    def __init__(self) -> None:
        self.port = free_port()
        self.pid = 0
        self._data = Path(tempfile.mkdtemp(prefix="backlog-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Empty, on the same port as before."""
        program = shutil.which("redis-server")
        assert program is not None, "no redis-server here: run scripts/need.sh redis"
        command = [sys.executable, "-I", "-S", watchdog.__file__, program]
        command += ["--port", str(self.port), "--bind", HOST, "--dir", str(self._data)]
        command += ["--save", "", "--appendonly", "no"]
        with (self._data / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        deadline = time.monotonic() + 60
        with self.connect() as client:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    return self
                is_over = self._process.poll() is not None or time.monotonic() > deadline
                assert not is_over, (self._data / "log").read_text()
                time.sleep(0.02)

    def connect(self, password: str | None = None) -> redis.Redis:
        """A client that waits for at most 5 s and asks once."""
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        once = Retry(NoBackoff(), 0)
        return redis.Redis(HOST, self.port, password=password, socket_timeout=5, retry=once)

    def kill(self) -> None:
        """As a crash; all it held is gone."""
        if self._process is not None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(60)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)
