"""What people are told of, once each."""

import sqlalchemy as sa
from alembic import op

from digest_pipeline.errors import SchemaVersionError

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "incident",
        sa.Column(
            "id",
            sa.String(32),
            nullable=False,
            comment="drawn at random; people are told under it",
        ),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False, comment="empty: of no digest"),
        sa.Column("period", sa.Text(), nullable=False, comment="empty: of no period"),
        sa.Column(
            "subject",
            sa.Text(),
            nullable=False,
            comment="step and error class, check, hold reason or gate",
        ),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column(
            "facts",
            sa.Text(),
            nullable=False,
            comment="JSON: what people are told; fixed at the opening",
        ),
        sa.Column("times", sa.Integer(), nullable=False, comment="failures that were the same thing"),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("event_at", sa.BigInteger(), nullable=False, comment="of the newest event taken in"),
        sa.Column("closed_at", sa.BigInteger(), comment="when it was well again"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident")),
    )
    identity = ["kind", "digest", "period", "subject"]
    is_open = sa.text("closed_at IS NULL")
    op.create_index(
        "uq_incident_open",
        "incident",
        identity,
        unique=True,
        postgresql_where=is_open,
        sqlite_where=is_open,
    )
    op.create_index("ix_incident_identity", "incident", identity)
    op.create_table(
        "incident_notice",
        sa.Column("incident_id", sa.String(32), nullable=False),
        sa.Column(
            "channel",
            sa.String(64),
            nullable=False,
            comment="log, webhook, email:hash of the address",
        ),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("next_try_at", sa.BigInteger(), comment="NULL: told, or given up"),
        sa.Column("told_at", sa.BigInteger()),
        sa.Column("outcome", sa.String(16), comment="of the newest try"),
        sa.Column(
            "doubtful_at",
            sa.BigInteger(),
            comment="first try that may have reached somebody, not disproved",
        ),
        sa.Column("account", sa.Text(), comment="of the provider, at the newest try"),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incident.id"], name=op.f("fk_incident_notice_incident_id")
        ),
        sa.PrimaryKeyConstraint("incident_id", "channel", name=op.f("pk_incident_notice")),
    )
    is_due = sa.text("next_try_at IS NOT NULL")
    op.create_index(
        "ix_incident_notice_due",
        "incident_notice",
        ["next_try_at"],
        postgresql_where=is_due,
        sqlite_where=is_due,
    )


def downgrade() -> None:
    raise SchemaVersionError("a ledger is never downgraded: deploy the newer build again")
