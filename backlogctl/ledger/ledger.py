"""The ledger: one database, and one manager for each of its words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from backlogctl.ledger.archives import Archives
from backlogctl.ledger.bookmarks import Bookmarks
from backlogctl.ledger.chunks import Chunks
from backlogctl.ledger.events import Events
from backlogctl.ledger.figures import Figures
from backlogctl.ledger.gaps import Gaps
from backlogctl.ledger.holds import Holds
from backlogctl.ledger.leases import Leases
from backlogctl.ledger.measurements import Audits, Burndown, Disks
from backlogctl.ledger.recoveries import Recoveries
from backlogctl.ledger.samples import Samples
from backlogctl.ledger.schema import (
    HEAD,
    LedgerDatabase,
    LedgerPatience,
    check_revision,
    read_revision,
    upgrade_database,
)
from backlogctl.ledger.steps import Steps
from backlogctl.ledger.temporary_topics import TemporaryTopics
from backlogctl.ledger.transactions import Aborts, Empties


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
        self.aborts = Aborts(database)
        self.empties = Empties(database)
        self.figures = Figures(database)

    @property
    def label(self) -> str:
        """What it is, without a password: `ledger sqlite:///backlog.db`."""
        return self._database.label

    def now(self) -> datetime:
        """The ledger's clock, which expiries are judged by."""
        with self._database.read() as connection:
            return self._database.now(connection)

    @contextmanager
    def outlasting(self, patience: LedgerPatience) -> Iterator[None]:
        """Verbs that fail because the database is away, locked or full are tried again, as the
        patience says.

        A verb whose commit was not answered may be done twice: a line of the record stands there
        twice, a state that was changed is refused as changed.
        """
        before, self._database.patience = self._database.patience, patience
        try:
            yield
        finally:
            self._database.patience = before

    def check_pages(self, seconds: float) -> bool:
        """Whether all of an SQLite file was found undamaged within the time.

        Raises:
            LedgerError: it is damaged.
        """
        return self._database.check_pages(seconds)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Every command waits for it; `doctor` looks longer.
CHECK_SECONDS = 0.5


def open_ledger(url: str) -> Ledger:
    """Opens a ledger. SQLite makes and upgrades itself, and is looked through for damage for half a
    second; PostgreSQL must be upgraded already.

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
        database.check_pages(CHECK_SECONDS)
    except BaseException:
        database.close()
        raise
    return Ledger(database)


def _is_current(database: LedgerDatabase) -> bool:
    # Looked at without the write lock first: `status` must not wait for a busy writer.
    with database.read() as connection:
        return read_revision(connection) == HEAD
