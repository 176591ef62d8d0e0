"""Configuration and ledger, opened together: what every verb works with."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from backlog.config import Config, Stream
from backlog.values import FINAL, Recovery
from replay.recovery.kind import Kind, Registry
from replay.recovery.plan import Plan

if TYPE_CHECKING:
    from backlog.ledger import Ledger


@dataclass(frozen=True)
class Workspace:
    """An opened configuration."""

    config: Config
    ledger: Ledger
    kinds: Registry

    @classmethod
    def open(cls, config: Config, kinds: Registry) -> Self:
        """Opens the ledger that the configuration names.

        Raises:
            LedgerError: it cannot be opened, or needs `backlogctl db upgrade`.
        """
        from backlog.ledger import open_ledger

        return cls(config, open_ledger(config.ledger_url()), kinds)

    @classmethod
    def open_passing(cls, config: Config, kinds: Registry) -> Self:
        """With a ledger that is gone when the process ends."""
        from backlog.ledger import open_ledger

        # A file, not memory: the ledger's connections are several.
        directory = tempfile.mkdtemp(prefix="backlogctl-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return cls(config, open_ledger(f"sqlite:///{directory}/ledger.db"), kinds)

    def kind_of(self, recovery: Recovery) -> Kind[Any, Any]:
        """What this program knows of the recovery's kind.

        Raises:
            Refused: nothing; another program planned it.
        """
        return self.kinds.find(recovery)

    def plan_of(self, recovery: Recovery) -> Plan:
        """The stored plan, as the model of its kind and version.

        Raises:
            Refused: another version of this program, or another program, planned it.
        """
        plan: Plan = self.kind_of(recovery).read_plan(recovery)
        return plan

    def plan_now(self, recovery: Recovery) -> Plan:
        """The stored plan as it would be carried out now: what changes no message is taken from
        the configuration. Of a recovery that is over, the plan as it is stored.

        Raises:
            Refused: another version of this program, or another program, planned it.
        """
        plan, stream = self.plan_of(recovery), self.config.streams.get(recovery.stream)
        if stream is None or recovery.state in FINAL:
            return plan
        now: Plan = self.kind_of(recovery).apply_terms(plan, stream)
        return now

    def properties(self, stream: Stream) -> Mapping[str, str]:
        """Client properties of the stream's cluster, secrets revealed."""
        return self.config.clusters[stream.cluster].client_properties()

    def staging_of(self, recovery_id: str) -> Path:
        """Where a recovery's staged messages lie."""
        return self.config.staging.dir / recovery_id
