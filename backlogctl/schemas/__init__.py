"""Values and keys with a schema: frames, registries, and the formats themselves.

Its modules need the extra `schemas`, but `frames`; this one needs nothing of it. Nothing here knows
Kafka, Spark or the ledger.
"""
