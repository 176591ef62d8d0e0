"""The word that lets a plan go on where the Kafka ledger cannot be trusted."""

from __future__ import annotations

ALLOW_LEDGER = "ledger"
