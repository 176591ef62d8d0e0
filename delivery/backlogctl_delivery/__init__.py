"""Outbox, look-back, idempotent consumer and sequenced producer: what services take in."""
