"""A real MariaDB for the tests that are not part of the product."""

from __future__ import annotations

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

import pymysql

from backlogctl.sandbox import watchdog
from backlogctl.sandbox.secured import HOST, free_port


def find_program(name: str) -> str:
    """A program of the server, which Debian keeps beside the PATH of users."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    assert found is not None, f"no {name} here: run scripts/need.sh mariadb"
    return found


class EmbeddedMariaDb:
    """A MariaDB server with a data directory of its own; nothing of it outlives the tests."""

    def __init__(self) -> None:
        self.port = 0
        self._data = Path(tempfile.mkdtemp(prefix="backlog-maria-"))
        self.process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def url(self, database: str) -> str:
        """A SQLAlchemy URL of one database."""
        return f"mariadb+pymysql://tests@{HOST}:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Runs one statement."""
        with (
            pymysql.connect(host=HOST, port=self.port, user="tests", connect_timeout=10) as there,
            there.cursor() as cursor,
        ):
            cursor.execute(statement)

    def start(self) -> Self:
        """Makes a data directory and starts its server on a free port."""
        # The server refuses to run as root unless it is told to.
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        data = f"--datadir={self._data / 'db'}"
        subprocess.run(
            [
                find_program("mariadb-install-db"),
                *(
                    "--no-defaults",
                    data,
                    "--skip-test-db",
                    "--auth-root-authentication-method=normal",
                ),
                *as_root,
            ],
            check=True,
            capture_output=True,
        )
        grant = self._data / "grant.sql"
        grant.write_text(f"CREATE USER tests@'{HOST}';\nGRANT ALL ON *.* TO tests@'{HOST}';\n")
        self.port = free_port()
        # It ends with this process, however that ends.
        command = [sys.executable, "-I", "-S", watchdog.__file__, find_program("mariadbd")]
        command += ["--no-defaults", data, *as_root, f"--port={self.port}"]
        command += [f"--bind-address={HOST}", f"--socket={self._data / 'socket'}"]
        command += [
            f"--pid-file={self._data / 'pid'}",
            f"--init-file={grant}",
            "--skip-name-resolve",
        ]
        command += ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M"]
        with (self._data / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self._pid = int(self.process.stdout.readline())
        self._wait()
        return self

    def stop(self) -> None:
        """Stops the server at once and removes its data."""
        if self.process is not None:
            os.kill(self._pid, signal.SIGKILL)
            self.process.wait(90)
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            self.process.stdout.close()
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
            except pymysql.OperationalError:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self._data / "log").read_text()) from None
                time.sleep(0.05)
