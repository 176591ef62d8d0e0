"""The ledger: models, allowed transitions, verbs and migrations."""

from backlogctl.ledger.archives import ArchiveRecord
from backlogctl.ledger.chunks import ChunkRecord
from backlogctl.ledger.events import Owner
from backlogctl.ledger.holds import OPERATOR, Hold
from backlogctl.ledger.leases import Holder, Lease
from backlogctl.ledger.ledger import Ledger, open_ledger
from backlogctl.ledger.measurements import BurndownSample
from backlogctl.ledger.samples import CommitMark
from backlogctl.ledger.schema import upgrade
from backlogctl.ledger.steps import StepRecord
from backlogctl.ledger.temporary_topics import TemporaryTopic

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
