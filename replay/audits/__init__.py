"""The audits: what may be lost where offsets show nothing."""

from __future__ import annotations

from replay.audits.audit import Audit
from replay.audits.consumed import ConsumedAuditing
from replay.audits.counts import CountsAuditing
from replay.audits.producers import ProducerAuditing
from replay.audits.sequence import SequenceAuditing

AUDITS: tuple[Audit, ...] = (
    SequenceAuditing(),
    ProducerAuditing(),
    ConsumedAuditing(),
    CountsAuditing(),
)
