"""Real services for the tests that are not part of the product."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from backlogctl.sandbox import watchdog
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import HOST, free_port


def find_postgres() -> Path | None:
    """The directory of PostgreSQL's server programs: the PATH's, else Debian's newest."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found := shutil.which("postgres"):
        places.insert(0, Path(found).resolve().parent)
    return next((place for place in places if (place / "initdb").exists()), None)


class BorrowedKafka(EmbeddedKafka):
    """A broker of another process: its address is all that is known of it here."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    @property
    def bootstrap(self) -> str:
        return self._bootstrap


class Postgres:
    """A PostgreSQL server on this machine, whoever started it."""

    def __init__(self, port: int = 0) -> None:
        self.port = port

    def url(self, database: str = "postgres") -> str:
        """A SQLAlchemy URL of one database."""
        return f"postgresql+psycopg://postgres@{HOST}:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Run one statement outside of a transaction, as CREATE DATABASE wants it."""
        with psycopg.connect(
            host=HOST, port=self.port, user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement.encode())


class EmbeddedPostgres(Postgres):
    """A PostgreSQL server with a data directory of its own; nothing of it outlives the tests."""

    def __init__(self) -> None:
        super().__init__()
        self._bin = find_postgres()
        self._data = Path(tempfile.mkdtemp(prefix="backlog-pg-"))
        self._as_user: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Make a cluster and start its server on a free port."""
        assert self._bin is not None, "no PostgreSQL server here: run scripts/need.sh postgres"
        if os.geteuid() == 0:
            # The server refuses to run as root.
            owner = pwd.getpwnam("postgres")
            os.chown(self._data, owner.pw_uid, owner.pw_gid)
            self._as_user = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}"]
            self._as_user.append("--clear-groups")
        subprocess.run(
            [
                *self._as_user,
                str(self._bin / "initdb"),
                *("-D", str(self._data / "db"), "-U", "postgres", "--auth=trust"),
                *("-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
            ],
            check=True,
            cwd="/",
            capture_output=True,
        )
        self.port = free_port()
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": str(self._data),
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_connections": "200",
            "timezone": "UTC",
        }
        # It ends with this process, however that ends.
        command = [sys.executable, "-I", "-S", watchdog.__file__, *self._as_user]
        command += [str(self._bin / "postgres"), "-D", str(self._data / "db")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self._data / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()
        return self

    def stop(self) -> None:
        """Stop the server at once and remove its data."""
        if self.process is not None:
            # The pid file names the server itself; our child watches it.
            pid = int((self._data / "db" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)
            self.process.wait(90)
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process = None
        shutil.rmtree(self._data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + 120
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self._data / "log").read_text()) from None
                time.sleep(0.05)
