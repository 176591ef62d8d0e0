"""Alembic migrations of the ledger, packaged with it; run by `backlog.ledger.schema.upgrade`."""
