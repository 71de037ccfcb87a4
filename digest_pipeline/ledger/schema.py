"""The ledger's tables: the durable truth about who should receive what, and what became of it.

Instants are integers, microseconds since 1970 in UTC (``*_at``, ``*_until``, ``*_ends``): the same
arithmetic and the same equality on SQLite and PostgreSQL. Column comments name units; index comments
name the query they serve. Uniqueness and pairing rules live here as named constraints, so that a
mistake in the code is refused by the database too.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
    false,
)
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.types import TypeEngine

from digest_pipeline.outcomes import FailureClass, Proof, Stage
from digest_pipeline.states import State, SuppressionReason

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# PostgreSQL's fencing tokens; SQLite counts in ledger_identity.last_token.
delivery_token = Sequence("delivery_token", metadata=metadata)

# SQLite only gives a rowid alias (and AUTOINCREMENT) to a column declared exactly INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _key_type() -> TypeEngine[str]:
    # Byte order on both engines: SQLite's default is BINARY, PostgreSQL's follows the locale.
    return Text().with_variant(Text(collation="C"), "postgresql")


class ManifestState(StrEnum):
    """A manifest is built, then sealed for ever; archived keeps only the header and tombstones."""

    BUILDING = "building"
    SEALED = "sealed"
    ARCHIVED = "archived"


def _one_of(column: str, members: type[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{member}'" for member in members)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


ledger_identity = Table(
    "ledger_identity",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("environment", Text, nullable=False, comment="declared name, e.g. production"),
    Column("fingerprint", Text, nullable=False, comment="of the database itself; a copy differs"),
    Column("token_epoch", Integer, nullable=False, server_default="1"),
    Column("last_token", BigInteger, nullable=False, server_default="0", comment="SQLite's token counter"),
    Column("key_version", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("restored_from_at", BigInteger, comment="of the backup: a lost copy may have sent since"),
    Column("restored_at", BigInteger, comment="until when it may have"),
    CheckConstraint("id = 1", name="one_row"),
)

manifest = Table(
    "manifest",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("digest", Text, nullable=False),
    Column("period", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("build_token", String(32), nullable=False, comment="the one build that may write"),
    Column("key_version", Integer, nullable=False),
    Column("time_zone", Text, nullable=False),
    Column("period_start_at", BigInteger, nullable=False),
    Column("period_end_at", BigInteger, nullable=False),
    Column("window_opens_at", BigInteger, nullable=False),
    Column("window_closes_at", BigInteger, nullable=False),
    Column("late_until", BigInteger, comment="an audited permission to send after the window closed"),
    Column("selected_at", BigInteger, nullable=False, comment="when the source snapshot was opened"),
    Column("freezing_run_id", Text, nullable=False),
    Column("selected", BigInteger, comment="rows the customer source returned"),
    Column("entries", BigInteger, comment="customers who should receive the digest"),
    Column("excluded", Text, comment="JSON: reason -> rows"),
    Column("checksum", String(64), comment="SHA-256 over ordinal, key and recipient hash"),
    Column("sealed_at", BigInteger),
    Column("template_hash", String(64), ForeignKey("template.hash")),
    Column("render_inputs", Text, comment="JSON: every other input of the bytes"),
    Column("content_build_token", String(32)),
    Column("content_run_id", Text),
    Column("content_checksum", String(64), comment="SHA-256 over ordinal, key, recipient and payload hash"),
    Column("content_sealed_at", BigInteger, comment="also the instant at which all rows were enqueued"),
    Column("in_doubt_from_at", BigInteger, comment="a lost copy of the ledger may have sent it since"),
    Column("doubted_at", BigInteger, comment="when its rows that waited became unknown for that"),
    UniqueConstraint("digest", "period", "tenant"),
    _one_of("state", ManifestState),
    CheckConstraint(
        "state = 'building' OR (sealed_at IS NOT NULL AND entries IS NOT NULL AND checksum IS NOT NULL)",
        name="sealed_is_counted",
    ),
    CheckConstraint(
        "content_sealed_at IS NULL OR (sealed_at IS NOT NULL AND content_checksum IS NOT NULL)",
        name="content_after_seal",
    ),
)

manifest_entry = Table(
    "manifest_entry",
    metadata,
    Column("manifest_id", _Id, ForeignKey("manifest.id"), primary_key=True),
    Column("ordinal", BigInteger, primary_key=True),
    Column("operation_key", _key_type(), nullable=False),
    Column("customer_id", Text, nullable=False),
    Column("recipient", Text, comment="NULL once erased"),
    Column("recipient_hash", String(64), nullable=False, comment="of the exact bytes of the recipient"),
    Column("address_hash", String(64), nullable=False, comment="of the normalised address"),
    Column("name", Text, comment="display name, cleaned; NULL once erased"),
    UniqueConstraint("operation_key"),
)

manifest_exclusion = Table(
    "manifest_exclusion",
    metadata,
    Column("manifest_id", _Id, ForeignKey("manifest.id"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("customer_id", Text, nullable=False),
    Column("reason", String(32), nullable=False),
)

template = Table(
    "template",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("text", Text, nullable=False),
)

content = Table(
    "content",
    metadata,
    Column("manifest_id", _Id, primary_key=True),
    Column("ordinal", BigInteger, primary_key=True),
    Column("document", LargeBinary, nullable=False, comment="the frozen message, zlib of canonical JSON"),
    ForeignKeyConstraint(
        ["manifest_id", "ordinal"], ["manifest_entry.manifest_id", "manifest_entry.ordinal"]
    ),
)

delivery = Table(
    "delivery",
    metadata,
    Column("manifest_id", _Id, primary_key=True),
    Column("ordinal", BigInteger, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("due_at", BigInteger, comment="next send, or next search for evidence; NULL: neither"),
    Column("token", BigInteger, comment="of the newest claim; survives in every state"),
    Column("lease_ends", BigInteger),
    Column("claimed_at", BigInteger),
    Column("claimed_by", Text, comment="Dagster run / sender of the newest claim"),
    Column("attempts", Integer, nullable=False, server_default="0", comment="charged against the budget"),
    Column("budget_from", BigInteger, comment="first charged attempt; age is counted from here"),
    Column("late_until", BigInteger, comment="a replay's permission to send after the window closed"),
    Column("gateway", Text),
    Column("account", Text),
    Column("batch_id", String(64), comment="of the newest claim, where one key covers several messages"),
    Column("ambiguous_at", BigInteger, comment="first possibly-wire claim not yet disproved"),
    Column("ambiguous_token", BigInteger, comment="newest ambiguous attempt"),
    Column("absent_at", BigInteger, comment="first counted negative look-up of ambiguous_token"),
    Column("payload_hash", String(64)),
    Column("message_id", Text),
    Column("proof", String(16)),
    Column("failure_class", String(16)),
    Column("suppression", String(16)),
    Column("hold_reason", String(32)),
    Column("finished_at", BigInteger),
    Column("cleaned_at", BigInteger),
    Column("cleaned_by", Text, comment="the run that removed the generated rows, or the retention rule"),
    ForeignKeyConstraint(
        ["manifest_id", "ordinal"], ["manifest_entry.manifest_id", "manifest_entry.ordinal"]
    ),
    _one_of("state", State),
    CheckConstraint(
        "(state IN ('sent','cleaned','failed','dead','suppressed','written_off')) = (finished_at IS NOT NULL)",
        name="final_is_dated",
    ),
    CheckConstraint("(state = 'claimed') = (lease_ends IS NOT NULL)", name="claim_has_a_lease"),
    CheckConstraint("state <> 'claimed' OR token IS NOT NULL", name="claim_has_a_token"),
    CheckConstraint("(state IN ('sent','cleaned')) <= (proof IS NOT NULL)", name="sent_has_proof"),
    CheckConstraint("(state = 'cleaned') <= (cleaned_at IS NOT NULL)", name="cleaned_is_dated"),
    CheckConstraint("(state = 'unknown') <= (ambiguous_at IS NOT NULL)", name="unknown_is_ambiguous"),
    CheckConstraint(
        "ambiguous_at IS NULL OR state NOT IN ('pending','retry','failed','dead','suppressed')",
        name="ambiguity_is_sticky",
    ),
    CheckConstraint("(state = 'suppressed') = (suppression IS NOT NULL)", name="suppressed_has_a_reason"),
    CheckConstraint(
        f"proof IS NULL OR proof IN ({', '.join(repr(str(p)) for p in Proof)})",
        name="proof",
    ),
    CheckConstraint(
        f"suppression IS NULL OR suppression IN ({', '.join(repr(str(s)) for s in SuppressionReason)})",
        name="suppression",
    ),
    CheckConstraint(
        f"failure_class IS NULL OR failure_class IN ({', '.join(repr(str(f)) for f in FailureClass)})",
        name="failure_class",
    ),
)
# Room on each page for the versions that claim, settle and cleanup write (HOT where no index changes).
_fill_70: ExecutableDDLElement = DDL("ALTER TABLE delivery SET (fillfactor = 70)")  # type: ignore[no-untyped-call]
event.listen(delivery, "after_create", _fill_70.execute_if(dialect="postgresql"))

attempt = Table(
    "attempt",
    metadata,
    Column("token", BigInteger, primary_key=True, autoincrement=False),
    Column("manifest_id", _Id, nullable=False),
    Column("ordinal", BigInteger, nullable=False),
    Column("claimed_by", Text, nullable=False, comment="Dagster run / sender"),
    Column("gateway", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("batch_id", String(64), comment="the send_batch that carried it"),
    Column("claimed_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger, nullable=False),
    Column("stage", String(16), nullable=False),
    Column("outcome", String(16), nullable=False, comment="accepted, refused, released, expired, ..."),
    Column("failure_class", String(16)),
    Column("charged", Boolean, nullable=False, comment="counts against the retry budget"),
    Column("message_id", Text),
    Column("replayed", Boolean, nullable=False, server_default=false()),
    Column("detail", Text, comment="sanitised, at most 200 characters"),
    Column("late_outcome", String(16), comment="what came back after the claim was lost"),
    Column("late_message_id", Text),
    Column("late_at", BigInteger),
    _one_of("stage", Stage),
)

operator_action = Table(
    "operator_action",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("kind", String(32), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False, comment="declared, not proven"),
    Column("reason", Text, nullable=False),
    Column("approver", Text),
    Column("digest", Text),
    Column("period", Text),
    Column("tenant", Text),
    Column("keys", Text, comment="JSON list of operation keys"),
    Column("effect", Text, nullable=False, comment="JSON: what changed"),
)

suppression = Table(
    "suppression",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("address_hash", String(64), primary_key=True),
    Column("reason", String(16), nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("source", Text, comment="who said so: unsubscribe, provider event, refusal, operator"),
    Column("operation_key", _key_type(), comment="of the message that it was about"),
    Column("lifted_at", BigInteger, comment="when a person took it back: bounces before it count no more"),
    _one_of("reason", SuppressionReason),
)

provider_event = Table(
    "provider_event",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("operation_key", _key_type()),
    Column("kind", String(32), nullable=False),
    Column("happened_at", BigInteger, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("applied_at", BigInteger),
    Column("message_id", Text),
    Column("account", Text, comment="that the provider says it is of, where it says so"),
    Column("tenant", Text),
    Column("address_hash", String(64), comment="of the recipient, once the message is known"),
    Column("effect", String(16), comment="what applying it changed"),
    Column("permanent", Boolean, comment="of a bounce: it would happen again"),
)

pause = Table(
    "pause",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("name", Text, primary_key=True, comment="digest, digest/tenant, or gateway"),
    Column("since_at", BigInteger, nullable=False),
    CheckConstraint("kind IN ('digest', 'tenant', 'gateway')", name="kind"),
)

send_batch = Table(
    "send_batch",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("gateway", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("members", Text, nullable=False, comment="JSON: operation keys in wire order"),
    Column("size", Integer, nullable=False, comment="how many they are"),
)

rate_gate = Table(
    "rate_gate",
    metadata,
    Column("name", Text, primary_key=True),
    Column("per_second", Float, nullable=False),
    Column("burst", Integer, nullable=False),
    Column("next_free_at", BigInteger, nullable=False, comment="GCRA: theoretical arrival time"),
    Column("closed_until", BigInteger, nullable=False, server_default="0"),
    Column("halt_reason", Text),
    Column("probe_at", BigInteger),
)

push_receipt = Table(
    "push_receipt",
    metadata,
    Column("operation_key", _key_type(), primary_key=True),
    Column(
        "payload_hash", String(64), nullable=False, comment="of the frozen message; another one is refused"
    ),
    Column("state", String(16), nullable=False),
    Column("token", BigInteger, nullable=False, comment="of the newest claim; 0 before the first"),
    Column("claimed_at", BigInteger),
    Column("lease_ends", BigInteger, comment="NULL unless it is being sent"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("gateway", Text),
    Column("account", Text),
    Column("ambiguous_at", BigInteger, comment="first possibly-wire claim not yet disproved"),
    Column("ended_at", BigInteger, comment="of the newest ambiguous claim: its result, or its lease"),
    Column("absent_at", BigInteger, comment="first counted negative look-up"),
    Column(
        "due_at", BigInteger, comment="not before; NULL on an unknown: only an event or a person settles it"
    ),
    Column("message_id", Text),
    Column("proof", String(16)),
    Column("failure_class", String(16)),
    Column("suppressed", Boolean, comment="of a rejection: the address itself is left alone"),
    Column("digest", Text, comment="of the newest claim, as are tenant and address_hash"),
    Column("tenant", Text),
    Column("address_hash", String(64), comment="whom bounces, complaints and opt-outs are about"),
    Column("detail", Text, comment="sanitised, at most 200 characters"),
    Column("received_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    CheckConstraint(
        "state IN ('received', 'sending', 'unknown', 'complete', 'rejected')",
        name="state",
    ),
    CheckConstraint("(state = 'sending') = (lease_ends IS NOT NULL)", name="sending_has_a_lease"),
    CheckConstraint("(state IN ('complete', 'rejected')) = (finished_at IS NOT NULL)", name="final_is_dated"),
    CheckConstraint("(state = 'unknown') <= (ambiguous_at IS NOT NULL)", name="unknown_is_ambiguous"),
    CheckConstraint(
        "ambiguous_at IS NULL OR state NOT IN ('received', 'rejected')", name="ambiguity_is_sticky"
    ),
    CheckConstraint("(state = 'rejected') <= (failure_class IS NOT NULL)", name="rejected_has_a_class"),
)

incident = Table(
    "incident",
    metadata,
    Column("id", String(32), primary_key=True, comment="drawn at random; people are told under it"),
    Column("kind", String(32), nullable=False),
    Column("digest", Text, nullable=False, comment="empty: of no digest"),
    Column("period", Text, nullable=False, comment="empty: of no period"),
    Column("subject", Text, nullable=False, comment="step and error class, check, hold reason or gate"),
    Column("severity", String(16), nullable=False),
    Column("facts", Text, nullable=False, comment="JSON: what people are told; fixed at the opening"),
    Column("times", Integer, nullable=False, comment="failures that were the same thing"),
    Column("opened_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False),
    Column("event_at", BigInteger, nullable=False, comment="of the newest event taken in"),
    Column("closed_at", BigInteger, comment="when it was well again"),
)

incident_notice = Table(
    "incident_notice",
    metadata,
    Column("incident_id", String(32), ForeignKey("incident.id"), primary_key=True),
    Column("channel", String(64), primary_key=True, comment="log, webhook, email:hash of the address"),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("next_try_at", BigInteger, comment="NULL: told, or given up"),
    Column("told_at", BigInteger),
    Column("outcome", String(16), comment="of the newest try"),
    Column("doubtful_at", BigInteger, comment="first try that may have reached somebody, not disproved"),
    Column("account", Text, comment="of the provider, at the newest try"),
)

# claims.claim: the next due rows of a manifest. Final rows leave it, so it stays as small as the work.
Index(
    "ix_delivery_open",
    delivery.c.manifest_id,
    delivery.c.due_at,
    delivery.c.ordinal,
    postgresql_where=delivery.c.due_at.is_not(None),
    sqlite_where=delivery.c.due_at.is_not(None),
)
# claims.expire_leases: the claims whose lease has run out.
Index(
    "ix_delivery_lease",
    delivery.c.lease_ends,
    postgresql_where=delivery.c.lease_ends.is_not(None),
    sqlite_where=delivery.c.lease_ends.is_not(None),
)
# reconciliation: the rows that wait for evidence. On ambiguous_at, not on the state, so that settling an
# ordinary send changes no column of it.
Index(
    "ix_delivery_ambiguous",
    delivery.c.manifest_id,
    delivery.c.ordinal,
    postgresql_where=delivery.c.ambiguous_at.is_not(None),
    sqlite_where=delivery.c.ambiguous_at.is_not(None),
)
# operations.trace and the checks: every attempt of one delivery.
Index("ix_attempt_delivery", attempt.c.manifest_id, attempt.c.ordinal)
# provider_events: the delivery of an event that names the provider's own message id only.
Index(
    "ix_attempt_message",
    attempt.c.message_id,
    postgresql_where=attempt.c.message_id.is_not(None),
    sqlite_where=attempt.c.message_id.is_not(None),
)
# batches: the members of a batch that is to be sent again as a whole.
Index(
    "ix_delivery_batch",
    delivery.c.batch_id,
    postgresql_where=delivery.c.batch_id.is_not(None),
    sqlite_where=delivery.c.batch_id.is_not(None),
)
# provider_events: what was parked for a message, and what became of one.
Index("ix_provider_event_key", provider_event.c.operation_key)
Index(
    "ix_provider_event_parked",
    provider_event.c.provider,
    provider_event.c.received_at,
    postgresql_where=provider_event.c.applied_at.is_(None),
    sqlite_where=provider_event.c.applied_at.is_(None),
)
# suppressions: the bounces of an address over time.
Index("ix_provider_event_address", provider_event.c.address_hash, provider_event.c.kind)
# reads: the manifest a customer is in, and every period of a customer.
Index("ix_manifest_entry_customer", manifest_entry.c.customer_id)
# incidents: at most one of a thing is open. Two sensors that see it at once: one opens it, one counts.
Index(
    "uq_incident_open",
    incident.c.kind,
    incident.c.digest,
    incident.c.period,
    incident.c.subject,
    unique=True,
    postgresql_where=incident.c.closed_at.is_(None),
    sqlite_where=incident.c.closed_at.is_(None),
)
# incidents: whether an event was taken in before, by an incident that is closed.
Index("ix_incident_identity", incident.c.kind, incident.c.digest, incident.c.period, incident.c.subject)
# notices.due: who has still to be told.
Index(
    "ix_incident_notice_due",
    incident_notice.c.next_try_at,
    postgresql_where=incident_notice.c.next_try_at.is_not(None),
    sqlite_where=incident_notice.c.next_try_at.is_not(None),
)
