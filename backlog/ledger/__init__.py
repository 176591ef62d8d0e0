"""The ledger: models, allowed transitions, verbs and migrations."""

from backlog.ledger.archives import ArchiveRecord
from backlog.ledger.chunks import ChunkRecord
from backlog.ledger.events import Owner
from backlog.ledger.holds import OPERATOR, Hold
from backlog.ledger.leases import Holder, Lease
from backlog.ledger.ledger import Ledger, open_ledger
from backlog.ledger.measurements import BurndownSample
from backlog.ledger.samples import CommitMark
from backlog.ledger.schema import upgrade
from backlog.ledger.steps import StepRecord
from backlog.ledger.temporary_topics import TemporaryTopic

__all__ = [
    "OPERATOR",
    "ArchiveRecord",
    "BurndownSample",
    "ChunkRecord",
    "CommitMark",
    "Hold",
    "Holder",
    "Lease",
    "Ledger",
    "Owner",
    "StepRecord",
    "TemporaryTopic",
    "open_ledger",
    "upgrade",
]
