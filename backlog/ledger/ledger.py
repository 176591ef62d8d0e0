"""The ledger: one database, and one manager for each of its words."""

from __future__ import annotations

from datetime import datetime

from backlog.ledger.archives import Archives
from backlog.ledger.bookmarks import Bookmarks
from backlog.ledger.chunks import Chunks
from backlog.ledger.events import Events
from backlog.ledger.figures import Figures
from backlog.ledger.gaps import Gaps
from backlog.ledger.holds import Holds
from backlog.ledger.leases import Leases
from backlog.ledger.measurements import Audits, Burndown, Disks
from backlog.ledger.recoveries import Recoveries
from backlog.ledger.samples import Samples
from backlog.ledger.schema import (
    HEAD,
    LedgerDatabase,
    check_revision,
    read_revision,
    upgrade_database,
)
from backlog.ledger.steps import Steps
from backlog.ledger.temporary_topics import TemporaryTopics


class Ledger:
    """The managers of one open ledger; a context manager that closes it."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database
        self.samples = Samples(database)
        self.bookmarks = Bookmarks(database)
        self.gaps = Gaps(database)
        self.recoveries = Recoveries(database)
        self.leases = Leases(database)
        self.chunks = Chunks(database)
        self.events = Events(database)
        self.steps = Steps(database)
        self.temporary_topics = TemporaryTopics(database)
        self.archives = Archives(database)
        self.disks = Disks(database)
        self.audits = Audits(database)
        self.holds = Holds(database)
        self.burndown = Burndown(database)
        self.figures = Figures(database)

    @property
    def label(self) -> str:
        """What it is, without a password: `ledger sqlite:///backlog.db`."""
        return self._database.label

    def now(self) -> datetime:
        """The ledger's clock, which expiries are judged by."""
        with self._database.read() as connection:
            return self._database.now(connection)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_ledger(url: str) -> Ledger:
    """Opens a ledger. SQLite makes and upgrades itself; PostgreSQL must be upgraded already.

    Raises:
        LedgerError: it cannot be reached or made, or its tables are not of this program; the hint
            says what to do (`backlogctl db upgrade`).
        ConfigurationError: the URL is not one of SQLite or PostgreSQL.
    """
    database = LedgerDatabase(url)
    try:
        if database.is_sqlite and not _is_current(database):
            upgrade_database(database)
        check_revision(database)
    except BaseException:
        database.close()
        raise
    return Ledger(database)


def _is_current(database: LedgerDatabase) -> bool:
    # Looked at without the write lock first: `status` must not wait for a busy writer.
    with database.read() as connection:
        return read_revision(connection) == HEAD
