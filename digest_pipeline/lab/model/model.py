"""One function of a row per arrow of ``states.TRANSITIONS``.

Each function is what the UPDATE of the same name in ``ledger.transitions`` does: it returns the row as it
is afterwards, or None where the guard does not match. Nothing else changes a row's state. What time does
to a row (a lease that ends, a key that gets old) are flags here, set by whoever plays the environment.
"""

from __future__ import annotations

from digest_pipeline.lab.model.row import Content, Now, Row
from digest_pipeline.lab.model.rules import Guard, Rules
from digest_pipeline.states import CLAIMABLE, DEAD_LETTERS, STOPPED, State


def may_be_sent(row: Row, now: Now, rules: Rules) -> bool:
    """Whether the window is open for this row, and no restored backup stands in the way."""
    in_doubt = row.marked and rules.has(Guard.DOUBT_AFTER_RESTORE)
    return (row.late or not now.window_over) and not in_doubt


def claim(row: Row, now: Now, rules: Rules) -> Row | None:
    """Take a waiting row under a new token, unless its address is suppressed."""
    barred = row.suppressed and rules.has(Guard.SUPPRESSION_AT_CLAIM)
    if row.state not in CLAIMABLE or not may_be_sent(row, now, rules) or barred:
        return None
    return row._replace(
        state=State.CLAIMED,
        token=row.token + 1,
        lease_over=False,
        fresh=True,
        retained=True,
        account=now.account,
    )


def reclaim_unknown(row: Row, now: Now, rules: Rules) -> Row | None:
    """Take an unknown row for an idempotent re-send: key still known, same account, nobody opted out."""
    if row.state is not State.UNKNOWN or not rules.can.replays or not may_be_sent(row, now, rules):
        return None
    if not row.fresh and rules.has(Guard.KEY_LIFETIME):
        return None
    if row.account != now.account and rules.has(Guard.ACCOUNT):
        return None
    if row.content is not Content.PRESENT or (row.suppressed and rules.has(Guard.SUPPRESSION_AT_CLAIM)):
        return None
    return row._replace(state=State.CLAIMED, token=row.token + 1, lease_over=False, account=now.account)


def _holds(row: Row, token: int, rules: Rules) -> bool:
    """Whether the claim under this token is still the row's."""
    return row.state is State.CLAIMED and (row.token == token or not rules.has(Guard.TOKEN))


def _clear(row: Row, token: int, rules: Rules) -> bool:
    clear = row.ambiguous == 0 or not rules.has(Guard.STICKY_AMBIGUITY)
    return _holds(row, token, rules) and clear


def settle_sent(row: Row, token: int, rules: Rules) -> Row | None:
    """Accepted."""
    if not _holds(row, token, rules):
        return None
    return _reached(row)._replace(recorded=True, budget=row.spent)


def settle_retry(row: Row, token: int, rules: Rules) -> Row | None:
    """Proven not sent, and worth another attempt."""
    if not _clear(row, token, rules):
        return None
    return row._replace(state=State.RETRY, ambiguous=0, budget=row.spent)


def settle_failed(row: Row, token: int, rules: Rules) -> Row | None:
    """A verdict that a repeat cannot change."""
    if not _clear(row, token, rules):
        return None
    return row._replace(state=State.FAILED, ambiguous=0, budget=row.spent)


def settle_dead(row: Row, token: int, rules: Rules) -> Row | None:
    """The budget is used up."""
    if not _clear(row, token, rules):
        return None
    return row._replace(state=State.DEAD, ambiguous=0, budget=row.spent)


def release_pending(row: Row, token: int, rules: Rules) -> Row | None:
    """Back to pending: no attempt was made of it."""
    return row._replace(state=State.PENDING, ambiguous=0) if _clear(row, token, rules) else None


def release_retry(row: Row, token: int, rules: Rules) -> Row | None:
    """Back to retry: no attempt was made of it."""
    return row._replace(state=State.RETRY, ambiguous=0) if _clear(row, token, rules) else None


def settle_unknown(row: Row, token: int, rules: Rules, *, sent: bool, charged: bool) -> Row | None:
    """It may have been accepted. ``sent`` False: this attempt was not, and the row stays as ambiguous."""
    if not _holds(row, token, rules):
        return None
    newest = sent or row.ambiguous == 0
    return row._replace(
        state=State.UNKNOWN,
        ambiguous=row.token if newest else row.ambiguous,
        absent=0 if sent else row.absent,
        visible=False if newest else row.visible,
        budget=row.spent if charged else row.budget,
    )


def expire_lease(row: Row, rules: Rules) -> Row | None:
    """The lease is over, and nobody knows whether it was sent."""
    if row.state is not State.CLAIMED or not row.lease_over:
        return None
    if not rules.has(Guard.LEASE_TO_UNKNOWN):
        return row._replace(state=State.RETRY, ambiguous=0, budget=row.spent)
    return row._replace(state=State.UNKNOWN, ambiguous=row.token, absent=0, visible=False, budget=row.spent)


def doubt(row: Row) -> Row | None:
    """The lost copy of a restored ledger may have sent it; evidence counts from now on."""
    if row.state not in (State.PENDING, State.RETRY, State.UNKNOWN) or not row.marked:
        return None
    token = row.token + 1
    return row._replace(
        state=State.UNKNOWN, token=token, ambiguous=token, absent=0, visible=False, marked=False
    )


def disprove_unknown(row: Row, token: int, rules: Rules) -> Row | None:
    """Every ambiguous attempt is disproved."""
    if row.state is not State.UNKNOWN or (row.token != token and rules.has(Guard.TOKEN)):
        return None
    return row._replace(state=State.RETRY, ambiguous=0, absent=0)


def note_absence(row: Row, token: int) -> Row | None:
    """Remember a first counted absence. No arrow: the row stays unknown."""
    if row.state is not State.UNKNOWN or row.token != token or row.absent:
        return None
    return row._replace(absent=1)


def write_off(row: Row, token: int) -> Row | None:
    """Nobody will ever know: ended by a person or by the retention rule, as ambiguous as it was."""
    if row.state is not State.UNKNOWN or row.token != token:
        return None
    return row._replace(state=State.WRITTEN_OFF)


def apply_acceptance(row: Row, *, recorded: bool = False) -> Row | None:
    """Positive evidence, also late and from an older attempt (``recorded``: on an attempt's record)."""
    if row.state in (State.SENT, State.CLEANED):
        return None
    return _reached(row)._replace(recorded=row.recorded or recorded)


def resolve_sent(row: Row, token: int) -> Row | None:
    """A person's word that an unknown was sent."""
    if row.state is not State.UNKNOWN or row.token != token:
        return None
    return _reached(row)._replace(told=True)


def fail_sent(row: Row, token: int) -> Row | None:
    """The provider says that what it accepted never left."""
    if row.state is not State.SENT or row.token != token:
        return None
    return row._replace(state=State.FAILED, proved=False)


def clean(row: Row, rules: Rules) -> Row | None:
    """Proof reached: the generated rows go in the same transaction."""
    if row.state is not State.SENT or (not row.proved and rules.has(Guard.PROOF)):
        return None
    gone = Content.CLEANED if row.content is not Content.RETIRED else row.content
    return row._replace(state=State.CLEANED, content=gone)


def suppress(row: Row) -> Row | None:
    """Not to be sent after all; what a lost copy of the ledger may have sent is doubted first."""
    if row.state not in CLAIMABLE or row.marked:
        return None
    return row._replace(state=State.SUPPRESSED)


def close_window(row: Row, now: Now) -> Row | None:
    """The window is over: what was tried and still waits is dead."""
    if row.state is not State.RETRY or not now.window_over or row.late or row.marked:
        return None
    return row._replace(state=State.DEAD)


def close_manifest(row: Row, now: Now) -> Row | None:
    """The window is over, and a person or the retention rule ends what was never tried.

    It gets a token without a claim: a replay is guarded by the token it has seen. Not while a restored
    backup is in doubt: dead, it would be doubted no more, and a replay would send it.
    """
    if row.state is not State.PENDING or not now.window_over or row.late or row.marked:
        return None
    return row._replace(state=State.DEAD, token=row.token + 1)


def replay(row: Row, token: int, budget: int) -> Row | None:
    """A person's order to try a dead letter again: never accepted, not ambiguous, its content there."""
    if row.state not in DEAD_LETTERS or row.token != token or row.ambiguous or row.recorded:
        return None
    if row.content is not Content.PRESENT:
        return None
    return row._replace(state=State.RETRY, budget=budget, late=True)


def retire(row: Row) -> Row | None:
    """The retention rule removes the generated rows of what stopped. No arrow: the state stays."""
    if row.state not in STOPPED or row.content is not Content.PRESENT:
        return None
    return row._replace(content=Content.RETIRED)


def erase(row: Row) -> Row | None:
    """Blank the content and address of a customer; the state is another arrow's."""
    return row._replace(content=Content.ERASED) if row.content is Content.PRESENT else None


def _reached(row: Row) -> Row:
    return row._replace(state=State.SENT, ambiguous=0, absent=0)
