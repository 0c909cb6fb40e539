"""Alembic's entry: always on a connection that controlplane.store.migrate hands over, inside its transaction."""

from alembic import context

from controlplane.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
