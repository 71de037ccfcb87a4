"""Batches under one key, what providers report, and what a subscriber has received."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from digest_pipeline.errors import SchemaVersionError

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    _batches()
    _events()
    _receipts()


def downgrade() -> None:
    raise SchemaVersionError("a ledger is never downgraded: deploy the newer build again")


def _batches() -> None:
    comment = "of the newest claim, where one key covers several messages"
    op.add_column("delivery", sa.Column("batch_id", sa.String(64), comment=comment))
    op.add_column("attempt", sa.Column("batch_id", sa.String(64), comment="the send_batch that carried it"))
    _partial_index("ix_delivery_batch", "delivery", ["batch_id"], "batch_id IS NOT NULL")
    # Nothing has ever been written to it.
    op.drop_table("send_batch")
    op.create_table(
        "send_batch",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("members", sa.Text(), nullable=False, comment="JSON: operation keys in wire order"),
        sa.Column("size", sa.Integer(), nullable=False, comment="how many they are"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_send_batch")),
    )


def _events() -> None:
    added: dict[str, list[sa.Column[Any]]] = {
        "suppression": [
            sa.Column(
                "source", sa.Text(), comment="who said so: unsubscribe, provider event, refusal, operator"
            ),
            sa.Column("operation_key", _KEY, comment="of the message that it was about"),
            sa.Column(
                "lifted_at",
                sa.BigInteger(),
                comment="when a person took it back: bounces before it count no more",
            ),
        ],
        "provider_event": [
            sa.Column("account", sa.Text(), comment="that the provider says it is of, where it says so"),
            sa.Column("tenant", sa.Text()),
            sa.Column("address_hash", sa.String(64), comment="of the recipient, once the message is known"),
            sa.Column("effect", sa.String(16), comment="what applying it changed"),
            sa.Column("permanent", sa.Boolean(), comment="of a bounce: it would happen again"),
        ],
    }
    for table, columns in added.items():
        for column in columns:
            op.add_column(table, column)
    _partial_index("ix_attempt_message", "attempt", ["message_id"], "message_id IS NOT NULL")
    op.create_index("ix_provider_event_key", "provider_event", ["operation_key"])
    op.create_index("ix_provider_event_address", "provider_event", ["address_hash", "kind"])
    _partial_index(
        "ix_provider_event_parked", "provider_event", ["provider", "received_at"], "applied_at IS NULL"
    )


def _receipts() -> None:
    op.create_table(
        "push_receipt",
        sa.Column("operation_key", _KEY, nullable=False),
        sa.Column(
            "payload_hash",
            sa.String(64),
            nullable=False,
            comment="of the frozen message; another one is refused",
        ),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column(
            "token", sa.BigInteger(), nullable=False, comment="of the newest claim; 0 before the first"
        ),
        sa.Column("claimed_at", sa.BigInteger()),
        sa.Column("lease_ends", sa.BigInteger(), comment="NULL unless it is being sent"),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("gateway", sa.Text()),
        sa.Column("account", sa.Text()),
        sa.Column("ambiguous_at", sa.BigInteger(), comment="first possibly-wire claim not yet disproved"),
        sa.Column(
            "ended_at", sa.BigInteger(), comment="of the newest ambiguous claim: its result, or its lease"
        ),
        sa.Column("absent_at", sa.BigInteger(), comment="first counted negative look-up"),
        sa.Column(
            "due_at",
            sa.BigInteger(),
            comment="not before; NULL on an unknown: only an event or a person settles it",
        ),
        sa.Column("message_id", sa.Text()),
        sa.Column("proof", sa.String(16)),
        sa.Column("failure_class", sa.String(16)),
        sa.Column("suppressed", sa.Boolean(), comment="of a rejection: the address itself is left alone"),
        sa.Column("digest", sa.Text(), comment="of the newest claim, as are tenant and address_hash"),
        sa.Column("tenant", sa.Text()),
        sa.Column(
            "address_hash",
            sa.String(64),
            comment="whom bounces, complaints and opt-outs are about",
        ),
        sa.Column("detail", sa.Text(), comment="sanitised, at most 200 characters"),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger()),
        sa.CheckConstraint(
            "state IN ('received', 'sending', 'unknown', 'complete', 'rejected')",
            name=op.f("ck_push_receipt_state"),
        ),
        sa.CheckConstraint(
            "(state = 'sending') = (lease_ends IS NOT NULL)",
            name=op.f("ck_push_receipt_sending_has_a_lease"),
        ),
        sa.CheckConstraint(
            "(state IN ('complete', 'rejected')) = (finished_at IS NOT NULL)",
            name=op.f("ck_push_receipt_final_is_dated"),
        ),
        sa.CheckConstraint(
            "(state = 'unknown') <= (ambiguous_at IS NOT NULL)",
            name=op.f("ck_push_receipt_unknown_is_ambiguous"),
        ),
        sa.CheckConstraint(
            "ambiguous_at IS NULL OR state NOT IN ('received', 'rejected')",
            name=op.f("ck_push_receipt_ambiguity_is_sticky"),
        ),
        sa.CheckConstraint(
            "(state = 'rejected') <= (failure_class IS NOT NULL)",
            name=op.f("ck_push_receipt_rejected_has_a_class"),
        ),
        sa.PrimaryKeyConstraint("operation_key", name=op.f("pk_push_receipt")),
    )


def _partial_index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
