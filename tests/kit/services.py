"""Real services for the tests that are not part of the product."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

import psycopg
import pymysql
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from backlogctl.sandbox import watchdog
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import HOST, free_port
from tests.kit.kafka import wait_until


def find_postgres() -> Path | None:
    """The directory of PostgreSQL's server programs: the PATH's, else Debian's newest."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found := shutil.which("postgres"):
        places.insert(0, Path(found).resolve().parent)
    return next((place for place in places if (place / "initdb").exists()), None)


def find_program(name: str, need: str) -> str:
    """A program of a server, which Debian keeps beside the PATH of users."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    assert found is not None, f"no {name} here: run scripts/need.sh {need}"
    return found


class Server(ABC):
    """A server with a folder of its own, which ends with this process, however that ends."""

    ended_by = signal.SIGKILL

    def __init__(self) -> None:
        self.port = self.pid = 0
        self._data = Path(tempfile.mkdtemp(prefix="backlog-server-"))
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> Self:
        """Starts it; when it answers."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it is up."""

    def _launch(self, *command: str) -> Self:
        with (self._data / "log").open("wb") as log:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, *command],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdout is not None
        self.pid = int(process.stdout.readline())

        def is_up() -> bool:
            assert process.poll() is None, (self._data / "log").read_text()
            return self._answers()

        wait_until(is_up, 120.0, "the server answers")
        return self

    def kill(self) -> None:
        """Ends it at once; its folder stays."""
        if self._process is not None:
            os.kill(self.pid, self.ended_by)
            self._process.wait(90)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def stop(self) -> None:
        """Ends it at once and removes its folder."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


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


class EmbeddedPostgres(Server, Postgres):
    """A PostgreSQL server with a cluster of its own."""

    ended_by = signal.SIGQUIT

    def start(self) -> Self:
        """Make a cluster and start its server on a free port; again after `kill`, with its data."""
        programs, as_user = self._prepare()
        database = str(self._data / "db")
        if not self.port:
            self.port = free_port()
            words = ["-D", database, "-U", "postgres", "--auth=trust", "--no-sync"]
            words += ["-E", "UTF8", "--locale=C.UTF-8"]
            command = [*as_user, str(programs / "initdb"), *words]
            subprocess.run(command, check=True, cwd="/", capture_output=True)
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
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return self._launch(*as_user, str(programs / "postgres"), "-D", database, *settings)

    def make_standby(self) -> EmbeddedPostgres:
        """Another server, to be started; it follows this one until `SELECT pg_promote()`. From now
        on this one commits nothing that the other does not have."""
        other = EmbeddedPostgres()
        programs, as_user = other._prepare()
        other.port = free_port()
        words = ["-D", str(other._data / "db"), "-h", HOST, "-p", str(self.port), "-U", "postgres"]
        words += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        command = [*as_user, str(programs / "pg_basebackup"), *words]
        subprocess.run(command, check=True, cwd="/", capture_output=True)
        self.execute("ALTER ROLE postgres SET synchronous_commit = on")
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")
        return other

    def _prepare(self) -> tuple[Path, list[str]]:
        """Its programs, and what they are started by."""
        programs = find_postgres()
        assert programs is not None, "no PostgreSQL server here: run scripts/need.sh postgres"
        if os.geteuid() != 0:
            return programs, []
        # The server refuses to run as root.
        owner = pwd.getpwnam("postgres")
        os.chown(self._data, owner.pw_uid, owner.pw_gid)
        ids = [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}"]
        return programs, ["setpriv", *ids, "--clear-groups"]

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            self.execute("SELECT 1")
            return True
        return False


class EmbeddedMariaDb(Server):
    """A MariaDB server with databases of its own."""

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
        install = find_program("mariadb-install-db", "mariadb")
        own = ("--skip-test-db", "--auth-root-authentication-method=normal")
        subprocess.run(
            [install, "--no-defaults", data, *own, *as_root], check=True, capture_output=True
        )
        grant = self._data / "grant.sql"
        grant.write_text(
            f"CREATE USER tests@'{HOST}';\nGRANT ALL ON *.* TO tests@'{HOST}' WITH GRANT OPTION;\n"
        )
        self.port = free_port()
        return self._launch(
            *(find_program("mariadbd", "mariadb"), "--no-defaults", data, *as_root),
            *(f"--port={self.port}", f"--bind-address={HOST}", f"--socket={self._data / 'socket'}"),
            *(f"--pid-file={self._data / 'pid'}", f"--init-file={grant}", "--skip-name-resolve"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M"),
            f"--tmpdir={self._data}",  # servers delete each other's temporary tables in /tmp
        )

    def _answers(self) -> bool:
        with contextlib.suppress(pymysql.OperationalError):
            self.execute("SELECT 1")
            return True
        return False


class EmbeddedRedis(Server):
    """A Redis server that keeps nothing on disk; `kill` is a crash, after which all is gone."""

    def start(self) -> Self:
        """Empty, on the same port as before."""
        self.port = self.port or free_port()
        program = find_program("redis-server", "redis")
        words = ("--port", str(self.port), "--bind", HOST, "--dir", str(self._data))
        return self._launch(program, *words, "--save", "", "--appendonly", "no")

    def connect(self, password: str | None = None) -> redis.Redis:
        """A client that waits for at most 5 s and asks once."""
        once = Retry(NoBackoff(), 0)
        return redis.Redis(HOST, self.port, password=password, socket_timeout=5, retry=once)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError), self.connect() as client:
            return bool(client.ping())
        return False
