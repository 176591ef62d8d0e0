"""The ledger: models, allowed transitions, verbs and migrations."""

from backlog.ledger.chunks import ChunkRecord
from backlog.ledger.leases import Holder, Lease
from backlog.ledger.ledger import Ledger, open_ledger
from backlog.ledger.owners import Owner
from backlog.ledger.samples import CommitMark
from backlog.ledger.schema import upgrade

__all__ = [
    "ChunkRecord",
    "CommitMark",
    "Holder",
    "Lease",
    "Ledger",
    "Owner",
    "open_ledger",
    "upgrade",
]
