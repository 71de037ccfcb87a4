"""What a ledger that was restored from a backup must remember."""

import sqlalchemy as sa
from alembic import op

from digest_pipeline.errors import SchemaVersionError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "ledger_identity",
        sa.Column(
            "restored_from_at", sa.BigInteger(), comment="of the backup: a lost copy may have sent since"
        ),
    )
    op.add_column(
        "ledger_identity", sa.Column("restored_at", sa.BigInteger(), comment="until when it may have")
    )
    op.add_column(
        "manifest",
        sa.Column(
            "in_doubt_from_at", sa.BigInteger(), comment="a lost copy of the ledger may have sent it since"
        ),
    )
    op.add_column(
        "manifest",
        sa.Column("doubted_at", sa.BigInteger(), comment="when its rows that waited became unknown for that"),
    )


def downgrade() -> None:
    raise SchemaVersionError("a ledger is never downgraded: deploy the newer build again")
