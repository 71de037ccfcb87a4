"""What each asset check must catch, planted with raw SQL into a finished period of five customers."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from digest_pipeline_tests.harness.rim import Rim

LONG_AGO = 1_000_000
"""A second after 1970: older than every retention rule."""


@dataclass(frozen=True)
class Planted:
    """A violation of one check. ``named``: the numbers of the customers whose keys it must name."""

    check: str
    plant: Callable[[Rim, int], None]
    named: tuple[int, ...] = ()
    count: int | None = None
    says: str = ""
    case: str = ""

    @property
    def id(self) -> str:
        return f"{self.check}-{self.case}" if self.case else self.check


def sql(*statements: str) -> Callable[[Rim, int], None]:
    def plant(rim: Rim, manifest_id: int) -> None:
        for statement in statements:
            rim.sql(statement, m=manifest_id)

    return plant


def second_acceptance(message: str) -> Callable[[Rim, int], None]:
    """Another accepted attempt of customer 2, which no code of ours could write."""
    return sql(
        "INSERT INTO attempt (token, manifest_id, ordinal, claimed_by, gateway, account, claimed_at, ended_at, stage, "
        "outcome, charged, message_id, replayed) SELECT token + 900000, manifest_id, ordinal, claimed_by, gateway, "
        f"account, claimed_at, ended_at, stage, 'accepted', charged, {message}, false FROM attempt "
        "WHERE manifest_id = :m AND ordinal = 2"
    )


def too_many_attempts(rim: Rim, manifest_id: int) -> None:
    for n in range(rim.digest.retry.max_attempts + 1):
        rim.sql(
            "INSERT INTO attempt (token, manifest_id, ordinal, claimed_by, gateway, account, claimed_at, ended_at, "
            "stage, outcome, failure_class, charged, replayed) VALUES (:t, :m, 3, 'r/s', 'sandbox', 'a', :at, :at, "
            "'on_wire', 'not_sent', 'transient', true, false)",
            t=800_000 + manifest_id * 100 + n,
            at=4_000_000_000_000_000,  # after any replay, which starts the budget anew
            m=manifest_id,
        )


def restored_content(rim: Rim, manifest_id: int) -> None:
    rim.sql("INSERT INTO content (manifest_id, ordinal, document) VALUES (:m, 3, :d)", m=manifest_id, d=b"x")


_OTHER = hashlib.sha256(b"m@evil.test").hexdigest()
_BACK = "cleaned_at = NULL, cleaned_by = NULL"
_UNSENT = f"proof = NULL, finished_at = NULL, {_BACK}"
VIOLATIONS = (
    Planted(
        "manifest_is_frozen",
        sql(
            "UPDATE manifest_entry SET recipient = 'mallory@evil.test' WHERE manifest_id = :m AND ordinal = 2"
        ),
        named=(2,),
        says="recipient",
        case="address",
    ),
    Planted(
        "manifest_is_frozen",
        sql(
            f"UPDATE manifest_entry SET recipient = 'm@evil.test', recipient_hash = '{_OTHER}' "
            "WHERE manifest_id = :m AND ordinal = 2"
        ),
        says="changed after the seal",
        case="address_and_hash",
    ),
    Planted(
        "manifest_is_frozen",
        sql("UPDATE delivery SET payload_hash = 'f00' WHERE manifest_id = :m AND ordinal = 2"),
        says="content was changed",
        case="content",
    ),
    Planted(
        "manifest_is_frozen",
        sql(
            "UPDATE manifest_entry SET operation_key = operation_key || 'x' WHERE manifest_id = :m AND ordinal = 2"
        ),
        says="changed after the seal",
        case="key",
    ),
    Planted(
        "manifest_is_frozen",
        sql(
            "DELETE FROM delivery WHERE manifest_id = :m AND ordinal = 5",
            "DELETE FROM manifest_entry WHERE manifest_id = :m AND ordinal = 5",
        ),
        says="5 entries and has 4",
        case="removed_entry",
    ),
    Planted(
        "manifest_is_frozen",
        sql("UPDATE manifest SET state = 'building' WHERE id = :m"),
        says="not sealed",
        case="thawed",
    ),
    Planted(
        "manifest_accounts_for_everyone",
        sql("UPDATE manifest SET selected = selected + 3 WHERE id = :m"),
        count=3,
        says="8 selected",
        case="lost_rows",
    ),
    Planted(
        "manifest_accounts_for_everyone",
        sql("DELETE FROM delivery WHERE manifest_id = :m AND ordinal IN (2, 4)"),
        named=(2, 4),
        says="2 customers",
        case="no_delivery",
    ),
    Planted("no_duplicate_sends", second_acceptance("'another-message'"), named=(2,), case="two_messages"),
    Planted("no_duplicate_sends", second_acceptance("NULL"), named=(2,), case="unnamed_message"),
    Planted(
        "no_duplicate_sends",
        sql(
            "UPDATE attempt SET late_outcome = 'accepted', late_message_id = 'late-message', outcome = 'expired', "
            "message_id = NULL WHERE manifest_id = :m AND ordinal = 2",
            "INSERT INTO attempt (token, manifest_id, ordinal, claimed_by, gateway, account, claimed_at, ended_at, "
            "stage, outcome, charged, message_id, replayed) SELECT token + 900000, manifest_id, ordinal, claimed_by, "
            "gateway, account, claimed_at, ended_at, stage, 'accepted', charged, 'in-time', false FROM attempt "
            "WHERE manifest_id = :m AND ordinal = 2",
        ),
        named=(2,),
        case="late_acceptance",
    ),
    Planted(
        "every_delivery_is_visible",
        sql(
            f"UPDATE delivery SET state = 'pending', due_at = NULL, {_UNSENT} WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        says="1 wait without a due time",
        case="never_due",
    ),
    Planted(
        "every_delivery_is_visible",
        sql(
            f"UPDATE delivery SET state = 'claimed', lease_ends = {LONG_AGO}, {_UNSENT} "
            "WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        says="1 are claimed by a sender whose lease ended long ago",
        case="dead_lease",
    ),
    Planted(
        "every_delivery_is_visible",
        sql(
            f"UPDATE delivery SET state = 'unknown', ambiguous_at = {LONG_AGO}, due_at = NULL, hold_reason = NULL, "
            f"{_UNSENT} WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        says="1 are unknown, and neither is evidence looked for",
        case="forgotten_unknown",
    ),
    Planted(
        "nothing_is_held",
        sql(
            f"UPDATE delivery SET state = 'pending', due_at = 1, {_UNSENT} WHERE manifest_id = :m AND ordinal IN (2, 4)",
            "UPDATE manifest SET window_opens_at = 0, window_closes_at = 1, late_until = NULL WHERE id = :m",
        ),
        named=(2, 4),
        says="nothing sends them until somebody decides (window_closed 2)",
        case="late",
    ),
    Planted(
        "nothing_is_held",
        sql(
            f"UPDATE delivery SET state = 'unknown', ambiguous_at = 1, due_at = NULL, hold_reason = 'no_evidence', "
            f"{_UNSENT} WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        says="no_evidence 1",
        case="unknown",
    ),
    Planted("attempts_within_policy", too_many_attempts, named=(3,), says="3 times"),
    Planted(
        "coverage_meets_objective",
        sql(
            f"UPDATE delivery SET state = 'dead', proof = NULL, {_BACK}, failure_class = 'transient' "
            "WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        says="coverage 0.8000 is below the objective 0.99: 4 of 5 were reached in time, 1 too few",
        case="dead",
    ),
    Planted(
        "coverage_meets_objective",
        sql(
            "UPDATE manifest SET window_opens_at = 0, window_closes_at = 1, late_until = NULL WHERE id = :m",
        ),
        named=(1, 2, 3, 4, 5),
        says="coverage 0.0000",
        case="all_too_late",
    ),
    Planted(
        "no_unknown_past_retention",
        sql(
            f"UPDATE delivery SET state = 'unknown', ambiguous_at = {LONG_AGO}, due_at = 1, {_UNSENT} "
            "WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        says="30 days",
    ),
    Planted(
        "cleanup_only_after_definitive_send",
        sql("DELETE FROM attempt WHERE manifest_id = :m AND ordinal = 3"),
        named=(3,),
        case="no_attempt",
    ),
    Planted(
        "cleanup_only_after_definitive_send",
        sql(
            f"UPDATE delivery SET state = 'pending', due_at = 1, {_UNSENT} WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        case="pending",
    ),
    Planted(
        "cleanup_only_after_definitive_send",
        sql(
            f"UPDATE delivery SET state = 'unknown', ambiguous_at = 1, due_at = 1, {_UNSENT} "
            "WHERE manifest_id = :m AND ordinal = 3"
        ),
        named=(3,),
        case="unknown",
    ),
    Planted(
        "cleanup_only_after_definitive_send",
        sql("UPDATE delivery SET cleaned_at = finished_at - 1 WHERE manifest_id = :m AND ordinal = 3"),
        named=(3,),
        case="before_the_send",
    ),
    Planted(
        "cleanup_only_after_definitive_send",
        sql("UPDATE attempt SET outcome = 'not_sent' WHERE manifest_id = :m AND ordinal = 3"),
        named=(3,),
        case="never_accepted",
    ),
    Planted("one_cleanup_per_key", restored_content, named=(3,), case="rows_left"),
    Planted(
        "one_cleanup_per_key",
        sql("UPDATE delivery SET state = 'sent' WHERE manifest_id = :m AND ordinal = 3"),
        named=(3,),
        case="state_left",
    ),
)
