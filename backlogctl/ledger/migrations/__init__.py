"""Alembic migrations of the ledger, packaged with it; run by `backlogctl.ledger.schema.upgrade`."""
