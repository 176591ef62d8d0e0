"""Run by Alembic. The connection, inside a transaction, comes from backlogctl.ledger.schema."""

from alembic import context

from backlogctl.ledger.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite's too, as our connections begin their transactions themselves
)
with context.begin_transaction():
    context.run_migrations()
