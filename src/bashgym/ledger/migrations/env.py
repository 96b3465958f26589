"""Alembic's entry: runs the migrations on the connection, and in the transaction, that `ledger.migrate` holds."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
