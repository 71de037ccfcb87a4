"""The first schema of the ledger."""

import sqlalchemy as sa
from alembic import op

from digest_pipeline.errors import SchemaVersionError

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempt",
        sa.Column("token", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("manifest_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=False, comment="Dagster run / sender"),
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column(
            "outcome",
            sa.String(length=16),
            nullable=False,
            comment="accepted, refused, released, expired, ...",
        ),
        sa.Column("failure_class", sa.String(length=16), nullable=True),
        sa.Column("charged", sa.Boolean(), nullable=False, comment="counts against the retry budget"),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("replayed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True, comment="sanitised, at most 200 characters"),
        sa.Column(
            "late_outcome",
            sa.String(length=16),
            nullable=True,
            comment="what came back after the claim was lost",
        ),
        sa.Column("late_message_id", sa.Text(), nullable=True),
        sa.Column("late_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "stage IN ('before_wire', 'on_wire', 'after_wire')", name=op.f("ck_attempt_stage")
        ),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_attempt")),
    )
    op.create_index("ix_attempt_delivery", "attempt", ["manifest_id", "ordinal"], unique=False)
    op.create_table(
        "ledger_identity",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False, comment="declared name, e.g. production"),
        sa.Column("fingerprint", sa.Text(), nullable=False, comment="of the database itself; a copy differs"),
        sa.Column("token_epoch", sa.Integer(), server_default="1", nullable=False),
        sa.Column(
            "last_token",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="SQLite's token counter",
        ),
        sa.Column("key_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_identity_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_identity")),
    )
    op.create_table(
        "operator_action",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False, comment="declared, not proven"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("approver", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("period", sa.Text(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("keys", sa.Text(), nullable=True, comment="JSON list of operation keys"),
        sa.Column("effect", sa.Text(), nullable=False, comment="JSON: what changed"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operator_action")),
    )
    op.create_table(
        "provider_event",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column(
            "operation_key", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=True
        ),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("happened_at", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("applied_at", sa.BigInteger(), nullable=True),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("provider", "event_id", name=op.f("pk_provider_event")),
    )
    op.create_table(
        "pause",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, comment="digest, digest/tenant, or gateway"),
        sa.Column("since_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('digest', 'tenant', 'gateway')", name=op.f("ck_pause_kind")),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_pause")),
    )
    op.create_table(
        "rate_gate",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("per_second", sa.Float(), nullable=False),
        sa.Column("burst", sa.Integer(), nullable=False),
        sa.Column("next_free_at", sa.BigInteger(), nullable=False, comment="GCRA: theoretical arrival time"),
        sa.Column("closed_until", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("halt_reason", sa.Text(), nullable=True),
        sa.Column("probe_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_rate_gate")),
    )
    op.create_table(
        "send_batch",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("members", sa.Text(), nullable=False, comment="JSON: operation keys in wire order"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_send_batch")),
    )
    op.create_table(
        "suppression",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("address_hash", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        sa.Column("since_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "reason IN ('empty', 'opted_out', 'shared_address', 'bounced', 'complained', 'erased')",
            name=op.f("ck_suppression_reason"),
        ),
        sa.PrimaryKeyConstraint("tenant", "address_hash", name=op.f("pk_suppression")),
    )
    op.create_table(
        "template",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_template")),
    )
    op.create_table(
        "manifest",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column(
            "build_token", sa.String(length=32), nullable=False, comment="the one build that may write"
        ),
        sa.Column("key_version", sa.Integer(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("period_start_at", sa.BigInteger(), nullable=False),
        sa.Column("period_end_at", sa.BigInteger(), nullable=False),
        sa.Column("window_opens_at", sa.BigInteger(), nullable=False),
        sa.Column("window_closes_at", sa.BigInteger(), nullable=False),
        sa.Column(
            "late_until",
            sa.BigInteger(),
            nullable=True,
            comment="an audited permission to send after the window closed",
        ),
        sa.Column(
            "selected_at", sa.BigInteger(), nullable=False, comment="when the source snapshot was opened"
        ),
        sa.Column("freezing_run_id", sa.Text(), nullable=False),
        sa.Column("selected", sa.BigInteger(), nullable=True, comment="rows the customer source returned"),
        sa.Column(
            "entries", sa.BigInteger(), nullable=True, comment="customers who should receive the digest"
        ),
        sa.Column("excluded", sa.Text(), nullable=True, comment="JSON: reason -> rows"),
        sa.Column(
            "checksum",
            sa.String(length=64),
            nullable=True,
            comment="SHA-256 over ordinal, key and recipient hash",
        ),
        sa.Column("sealed_at", sa.BigInteger(), nullable=True),
        sa.Column("template_hash", sa.String(length=64), nullable=True),
        sa.Column("render_inputs", sa.Text(), nullable=True, comment="JSON: every other input of the bytes"),
        sa.Column("content_build_token", sa.String(length=32), nullable=True),
        sa.Column("content_run_id", sa.Text(), nullable=True),
        sa.Column(
            "content_checksum",
            sa.String(length=64),
            nullable=True,
            comment="SHA-256 over ordinal, key, recipient and payload hash",
        ),
        sa.Column(
            "content_sealed_at",
            sa.BigInteger(),
            nullable=True,
            comment="also the instant at which all rows were enqueued",
        ),
        sa.CheckConstraint(
            "state = 'building' OR (sealed_at IS NOT NULL AND entries IS NOT NULL AND checksum IS NOT NULL)",
            name=op.f("ck_manifest_sealed_is_counted"),
        ),
        sa.CheckConstraint("state IN ('building', 'sealed', 'archived')", name=op.f("ck_manifest_state")),
        sa.CheckConstraint(
            "content_sealed_at IS NULL OR (sealed_at IS NOT NULL AND content_checksum IS NOT NULL)",
            name=op.f("ck_manifest_content_after_seal"),
        ),
        sa.ForeignKeyConstraint(["template_hash"], ["template.hash"], name=op.f("fk_manifest_template_hash")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_manifest")),
        sa.UniqueConstraint("digest", "period", "tenant", name=op.f("uq_manifest_digest_period_tenant")),
    )
    op.create_table(
        "manifest_entry",
        sa.Column("manifest_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column(
            "operation_key", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False
        ),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=True, comment="NULL once erased"),
        sa.Column(
            "recipient_hash",
            sa.String(length=64),
            nullable=False,
            comment="of the exact bytes of the recipient",
        ),
        sa.Column("address_hash", sa.String(length=64), nullable=False, comment="of the normalised address"),
        sa.Column("name", sa.Text(), nullable=True, comment="display name, cleaned; NULL once erased"),
        sa.ForeignKeyConstraint(["manifest_id"], ["manifest.id"], name=op.f("fk_manifest_entry_manifest_id")),
        sa.PrimaryKeyConstraint("manifest_id", "ordinal", name=op.f("pk_manifest_entry")),
        sa.UniqueConstraint("operation_key", name=op.f("uq_manifest_entry_operation_key")),
    )
    op.create_index("ix_manifest_entry_customer", "manifest_entry", ["customer_id"], unique=False)
    op.create_table(
        "manifest_exclusion",
        sa.Column("manifest_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["manifest_id"], ["manifest.id"], name=op.f("fk_manifest_exclusion_manifest_id")
        ),
        sa.PrimaryKeyConstraint("manifest_id", "position", name=op.f("pk_manifest_exclusion")),
    )
    op.create_table(
        "content",
        sa.Column("manifest_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column(
            "document", sa.LargeBinary(), nullable=False, comment="the frozen message, zlib of canonical JSON"
        ),
        sa.ForeignKeyConstraint(
            ["manifest_id", "ordinal"],
            ["manifest_entry.manifest_id", "manifest_entry.ordinal"],
            name=op.f("fk_content_manifest_id_ordinal"),
        ),
        sa.PrimaryKeyConstraint("manifest_id", "ordinal", name=op.f("pk_content")),
    )
    op.create_table(
        "delivery",
        sa.Column("manifest_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column(
            "due_at",
            sa.BigInteger(),
            nullable=True,
            comment="next send, or next search for evidence; NULL: neither",
        ),
        sa.Column(
            "token", sa.BigInteger(), nullable=True, comment="of the newest claim; survives in every state"
        ),
        sa.Column("lease_ends", sa.BigInteger(), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("claimed_by", sa.Text(), nullable=True, comment="Dagster run / sender of the newest claim"),
        sa.Column(
            "attempts", sa.Integer(), server_default="0", nullable=False, comment="charged against the budget"
        ),
        sa.Column(
            "budget_from",
            sa.BigInteger(),
            nullable=True,
            comment="first charged attempt; age is counted from here",
        ),
        sa.Column(
            "late_until",
            sa.BigInteger(),
            nullable=True,
            comment="a replay's permission to send after the window closed",
        ),
        sa.Column("gateway", sa.Text(), nullable=True),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column(
            "ambiguous_at",
            sa.BigInteger(),
            nullable=True,
            comment="first possibly-wire claim not yet disproved",
        ),
        sa.Column("ambiguous_token", sa.BigInteger(), nullable=True, comment="newest ambiguous attempt"),
        sa.Column(
            "absent_at",
            sa.BigInteger(),
            nullable=True,
            comment="first counted negative look-up of ambiguous_token",
        ),
        sa.Column("payload_hash", sa.String(length=64), nullable=True),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("proof", sa.String(length=16), nullable=True),
        sa.Column("failure_class", sa.String(length=16), nullable=True),
        sa.Column("suppression", sa.String(length=16), nullable=True),
        sa.Column("hold_reason", sa.String(length=32), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("cleaned_at", sa.BigInteger(), nullable=True),
        sa.Column(
            "cleaned_by",
            sa.Text(),
            nullable=True,
            comment="the run that removed the generated rows, or the retention rule",
        ),
        sa.CheckConstraint(
            "(state = 'claimed') = (lease_ends IS NOT NULL)", name=op.f("ck_delivery_claim_has_a_lease")
        ),
        sa.CheckConstraint(
            "(state = 'cleaned') <= (cleaned_at IS NOT NULL)", name=op.f("ck_delivery_cleaned_is_dated")
        ),
        sa.CheckConstraint(
            "(state = 'suppressed') = (suppression IS NOT NULL)",
            name=op.f("ck_delivery_suppressed_has_a_reason"),
        ),
        sa.CheckConstraint(
            "(state = 'unknown') <= (ambiguous_at IS NOT NULL)", name=op.f("ck_delivery_unknown_is_ambiguous")
        ),
        sa.CheckConstraint(
            "(state IN ('sent','cleaned')) <= (proof IS NOT NULL)", name=op.f("ck_delivery_sent_has_proof")
        ),
        sa.CheckConstraint(
            "(state IN ('sent','cleaned','failed','dead','suppressed','written_off')) = (finished_at IS NOT NULL)",
            name=op.f("ck_delivery_final_is_dated"),
        ),
        sa.CheckConstraint(
            "ambiguous_at IS NULL OR state NOT IN ('pending','retry','failed','dead','suppressed')",
            name=op.f("ck_delivery_ambiguity_is_sticky"),
        ),
        sa.CheckConstraint(
            "failure_class IS NULL OR failure_class IN ('connect', 'throttled', 'transient', 'ambiguous', 'recipient', 'content', 'account', 'window')",
            name=op.f("ck_delivery_failure_class"),
        ),
        sa.CheckConstraint(
            "proof IS NULL OR proof IN ('accepted', 'delivered', 'bounced', 'complained')",
            name=op.f("ck_delivery_proof"),
        ),
        sa.CheckConstraint(
            "state <> 'claimed' OR token IS NOT NULL", name=op.f("ck_delivery_claim_has_a_token")
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'claimed', 'retry', 'unknown', 'sent', 'cleaned', 'failed', 'dead', 'suppressed', 'written_off')",
            name=op.f("ck_delivery_state"),
        ),
        sa.CheckConstraint(
            "suppression IS NULL OR suppression IN ('empty', 'opted_out', 'shared_address', 'bounced', 'complained', 'erased')",
            name=op.f("ck_delivery_suppression"),
        ),
        sa.ForeignKeyConstraint(
            ["manifest_id", "ordinal"],
            ["manifest_entry.manifest_id", "manifest_entry.ordinal"],
            name=op.f("fk_delivery_manifest_id_ordinal"),
        ),
        sa.PrimaryKeyConstraint("manifest_id", "ordinal", name=op.f("pk_delivery")),
    )
    op.create_index(
        "ix_delivery_ambiguous",
        "delivery",
        ["manifest_id", "ordinal"],
        unique=False,
        postgresql_where=sa.text("ambiguous_at IS NOT NULL"),
        sqlite_where=sa.text("ambiguous_at IS NOT NULL"),
    )
    op.create_index(
        "ix_delivery_lease",
        "delivery",
        ["lease_ends"],
        unique=False,
        postgresql_where=sa.text("lease_ends IS NOT NULL"),
        sqlite_where=sa.text("lease_ends IS NOT NULL"),
    )
    op.create_index(
        "ix_delivery_open",
        "delivery",
        ["manifest_id", "due_at", "ordinal"],
        unique=False,
        postgresql_where=sa.text("due_at IS NOT NULL"),
        sqlite_where=sa.text("due_at IS NOT NULL"),
    )

    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE delivery_token")
        op.execute("ALTER TABLE delivery SET (fillfactor = 70)")


def downgrade() -> None:
    raise SchemaVersionError("a ledger is never downgraded: deploy the newer build again")
