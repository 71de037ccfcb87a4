"""What the database itself refuses, whatever the code does: every violation is planted with raw SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.exc import IntegrityError

from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import ManifestState
from digest_pipeline.outcomes import FailureClass, Proof, Stage
from digest_pipeline.states import State, SuppressionReason
from digest_pipeline_tests.harness.ledgers import plant, run_ledger_sql

Shared = tuple[Ledger, int]

FINAL = (State.SENT, State.CLEANED, State.FAILED, State.DEAD, State.SUPPRESSED, State.WRITTEN_OFF)
NEVER_AMBIGUOUS = (State.PENDING, State.RETRY, State.FAILED, State.DEAD, State.SUPPRESSED)

IMPOSSIBLE: list[tuple[str, str, dict[str, Any]]] = [
    *[("final_is_dated", str(state), {"finished_at": None}) for state in FINAL],
    *[("final_is_dated", str(s), {"finished_at": 1}) for s in State if s not in FINAL],
    ("claim_has_a_lease", "claimed", {"lease_ends": None}),
    *[("claim_has_a_lease", str(s), {"lease_ends": 1}) for s in State if s is not State.CLAIMED],
    ("claim_has_a_token", "claimed", {"token": None}),
    *[("sent_has_proof", state, {"proof": None}) for state in ("sent", "cleaned")],
    ("cleaned_is_dated", "cleaned", {"cleaned_at": None}),
    ("unknown_is_ambiguous", "unknown", {"ambiguous_at": None}),
    *[("ambiguity_is_sticky", str(state), {"ambiguous_at": 1}) for state in NEVER_AMBIGUOUS],
    ("suppressed_has_a_reason", "suppressed", {"suppression": None}),
    ("suppressed_has_a_reason", "sent", {"suppression": "opted_out"}),
    ("suppression", "suppressed", {"suppression": "disliked"}),
    ("proof", "sent", {"proof": "hoped"}),
    ("failure_class", "failed", {"failure_class": "bad_luck"}),
]


@pytest.mark.parametrize(("constraint", "state", "columns"), IMPOSSIBLE)
def test_an_impossible_delivery_is_refused(
    shared: Shared, constraint: str, state: str, columns: dict[str, Any]
) -> None:
    plant(*shared, 1, state)
    with pytest.raises(IntegrityError, match=rf"ck_delivery_{constraint}\b"):
        plant(*shared, 1, state, **columns)


def test_a_state_that_does_not_exist_is_refused(shared: Shared) -> None:
    ledger, manifest = shared
    plant(ledger, manifest, 1, "pending")
    with pytest.raises(IntegrityError, match="ck_delivery_state"):
        run_ledger_sql(ledger, "UPDATE delivery SET state = 'lost' WHERE ordinal = 1")


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_row_that_the_database_admits(shared: Shared, state: State) -> None:
    plant(*shared, 1, state)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE manifest SET sealed_at = NULL", "ck_manifest_(sealed_is_counted|content_after_seal)"),
        ("UPDATE manifest SET entries = NULL", "ck_manifest_sealed_is_counted"),
        ("UPDATE manifest SET checksum = NULL", "ck_manifest_sealed_is_counted"),
        ("UPDATE manifest SET content_checksum = NULL", "ck_manifest_content_after_seal"),
        ("UPDATE manifest SET state = 'torn'", "ck_manifest_state"),
        (
            "INSERT INTO ledger_identity SELECT 2, environment, fingerprint, 1, 0, 1, 1, NULL, NULL FROM ledger_identity",
            "one_row",
        ),
        ("UPDATE manifest_entry SET operation_key = 'same'", "(?i)unique"),
        ("DELETE FROM manifest_entry WHERE ordinal = 1", "(?i)foreign ?key"),
        (
            "INSERT INTO suppression (tenant, address_hash, reason, since_at) VALUES ('t', 'h', 'whim', 1)",
            "ck_suppression_reason",
        ),
    ],
)
def test_an_impossible_header_or_entry_is_refused(shared: Shared, statement: str, message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        run_ledger_sql(shared[0], statement)


def test_two_manifests_of_one_digest_period_and_tenant_are_refused(shared: Shared) -> None:
    copied = (
        "digest, period, tenant, state, build_token, key_version, time_zone, period_start_at, period_end_at, "
    )
    copied += "window_opens_at, window_closes_at, selected_at, freezing_run_id, sealed_at, entries, checksum"
    with pytest.raises(IntegrityError, match=r"(?i)unique"):
        run_ledger_sql(shared[0], f"INSERT INTO manifest ({copied}) SELECT {copied} FROM manifest")


@pytest.mark.parametrize(
    ("table", "name", "members"),
    [
        ("delivery", "ck_delivery_state", State),
        ("delivery", "ck_delivery_proof", Proof),
        ("delivery", "ck_delivery_suppression", SuppressionReason),
        ("delivery", "ck_delivery_failure_class", FailureClass),
        ("attempt", "ck_attempt_stage", Stage),
        ("suppression", "ck_suppression_reason", SuppressionReason),
        ("manifest", "ck_manifest_state", ManifestState),
    ],
)
def test_the_migrated_schema_lists_exactly_the_members_of_the_enum(
    shared: Shared, table: str, name: str, members: Iterable[StrEnum]
) -> None:
    checks = {str(c["name"]): c["sqltext"] for c in inspect(shared[0].engine).get_check_constraints(table)}
    assert set(re.findall(r"'([a-z_]+)'", checks[name])) == {str(member) for member in members}
