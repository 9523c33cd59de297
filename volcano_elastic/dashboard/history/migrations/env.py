"""Alembic's entry: migrates over the connection that it is given."""

from __future__ import annotations

from alembic import context

from volcano_elastic.dashboard.history.schema import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    # SQLite can't alter a table; alembic then makes it anew.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
