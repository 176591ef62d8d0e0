"""Injection: chunks, waves, brakes, the Kafka ledger and verification, on a real broker."""
