"""Alembic's entry: runs the package's migrations on a connection that ``ledger.migrate`` hands over."""

from alembic import context

from digest_pipeline.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="ledger_version",
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
