"""The audits: what may be lost where offsets show nothing."""

from __future__ import annotations

from backlogctl.replay.audits.audit import Audit
from backlogctl.replay.audits.consumed import ConsumedAuditing
from backlogctl.replay.audits.counts import CountsAuditing
from backlogctl.replay.audits.producers import ProducerAuditing
from backlogctl.replay.audits.sequence import SequenceAuditing

AUDITS: tuple[Audit, ...] = (
    SequenceAuditing(),
    ProducerAuditing(),
    ConsumedAuditing(),
    CountsAuditing(),
)
