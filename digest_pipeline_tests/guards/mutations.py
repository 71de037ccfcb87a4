"""Each guard of the guarantees, how to take it out of the code, and the tests that must then fail.

A mutation is the whole guard, wherever it stands: where two places hold the same line (the claim's query
and its UPDATE, a transition and the database's CHECK), removing one of them changes nothing that shows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One replacement in a file of the package; ``old`` stands there exactly ``times`` times."""

    file: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True)
class Mutation:
    """A guard that is taken out. ``tests``: pytest node ids (below digest_pipeline_tests), each must fail."""

    guard: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "the claim is committed before the provider is called",
        (
            Edit(
                "delivery/loop.py",
                "        taken, found = self.ledger.transact(work, patience=5.0)\n",
                "        with self.ledger.engine.connect() as conn, conn.begin() as transaction:\n"
                "            taken, found = work(conn)\n"
                "            transaction.rollback()\n",
            ),
        ),
        (
            "delivery/test_unknowns.py::test_with_neither_an_unknown_is_held_with_its_reason_and_never_sent_again",
        ),
    ),
    Mutation(
        "a claim whose lease is over is unknown",
        (
            Edit(
                "states.py",
                'Arrow("expire_lease", _from(State.CLAIMED), State.UNKNOWN,',
                'Arrow("expire_lease", _from(State.CLAIMED), State.RETRY,',
            ),
            Edit(
                "ledger/transitions.py",
                "            ambiguous_at=func.coalesce(_d.ambiguous_at, _d.claimed_at),\n            ambiguous_token=_d.token,\n            absent_at=null(),\n        )\n        .returning(\n            _d.manifest_id,\n            _d.ordinal,\n            _d.token,\n            _d.claimed_by,",
                "            absent_at=null(),\n        )\n        .returning(\n            _d.manifest_id,\n            _d.ordinal,\n            _d.token,\n            _d.claimed_by,",
            ),
        ),
        (
            "delivery/test_late_results.py::test_an_acceptance_that_comes_after_the_lease_is_recorded_and_applied",
        ),
    ),
    Mutation(
        "a settlement holds the token of its own claim",
        (Edit("ledger/transitions.py", "            _d.token == r.c.token,\n", ""),),
        ("ledger/test_transitions.py::test_a_settlement_with_another_claims_token_moves_nothing",),
    ),
    Mutation(
        "ambiguity is sticky: decided",
        (
            Edit(
                "delivery/retry_policy.py",
                "            if ambiguous:\n                return _unknown(evidence, policy, budget, random, failure_class, sent=False)\n            return Stop",
                "            return Stop",
            ),
        ),
        (
            "unit/test_retry_policy.py::test_while_ambiguous_nothing_but_an_acceptance_leaves_unknown",
            "delivery/test_unknowns.py::test_a_refusal_of_the_second_request_says_nothing_about_the_first",
        ),
    ),
    Mutation(
        "ambiguity is sticky: written",
        (
            Edit(
                "ledger/transitions.py",
                "_CLEAR = _d.ambiguous_at.is_(None)",
                "_CLEAR = _d.ordinal.is_not(None)",
            ),
        ),
        ("ledger/test_transitions.py::test_an_ambiguous_claim_never_becomes_anything_that_says_not_sent",),
    ),
    Mutation(
        "cleanup waits for proof",
        (Edit("ledger/transitions.py", "            _d.proof.in_(reached),\n", "", times=2),),
        ("ledger/test_cleanup.py::test_a_proof_that_has_not_come_keeps_the_rows",),
    ),
    Mutation(
        "an operation key is unique",
        (
            Edit("ledger/schema.py", '    UniqueConstraint("operation_key"),\n', ""),
            Edit(
                "ledger/migrations/versions/0001_ledger.py",
                '        sa.UniqueConstraint("operation_key", name=op.f("uq_manifest_entry_operation_key")),\n',
                "",
            ),
        ),
        (
            "ledger/test_manifests.py::test_a_key_of_another_manifest_is_never_written_twice",
            "ledger/test_manifests.py::test_a_customer_twice_within_and_across_pages_is_written_once_and_told",
        ),
    ),
    Mutation(
        "nothing is claimed before both seals",
        (
            Edit("ledger/claims.py", "            manifest.c.state == ManifestState.SEALED,\n", ""),
            Edit("ledger/claims.py", "            manifest.c.content_sealed_at.is_not(None),\n", ""),
        ),
        ("ledger/test_claims.py::test_nothing_is_claimed_before_both_seals_or_outside_the_window",),
    ),
    Mutation(
        "nothing is written after a seal",
        (
            Edit(
                "ledger/manifests.py",
                "    if found.state != ManifestState.BUILDING:\n        return None\n",
                "",
            ),
        ),
        ("ledger/test_manifests.py::test_nothing_is_added_after_the_seal_and_no_build_begins",),
    ),
    Mutation(
        "the frozen bytes are what is sent",
        (
            Edit(
                "content/message.py",
                '    if payload_hash(data) != expected_hash:\n        raise LedgerIntegrityError("a frozen message no longer has the hash it was frozen with")\n',
                "",
            ),
        ),
        (
            "ledger/test_manifests.py::test_a_frozen_message_that_was_changed_is_refused_before_it_is_sent",
            "delivery/test_deliver.py::test_a_frozen_message_that_was_changed_is_never_sent",
        ),
    ),
    Mutation(
        "a key is trusted for less than its lifetime",
        (
            Edit(
                "delivery/plan.py",
                "    usable = lifetime - min(KEY_MARGIN_SECONDS, lifetime / 10) - lease_seconds\n",
                "    usable = lifetime\n",
            ),
        ),
        (
            "unit/test_evidence.py::test_a_key_is_trusted_for_its_lifetime_less_an_hour_or_a_tenth_and_less_the_lease",
        ),
    ),
    Mutation(
        "a key beyond its lifetime is not used again",
        (
            Edit(
                "ledger/claims.py",
                '        _d.ambiguous_at > ledger_now() - bindparam("lifetime", type_=BigInteger()),\n',
                '        bindparam("lifetime", type_=BigInteger()) > 0,\n',
            ),
        ),
        (
            "ledger/test_claims.py::test_an_unknown_is_sent_again_by_its_own_account_inside_the_keys_lifetime",
            "delivery/test_unknowns.py::test_a_key_that_the_provider_may_have_forgotten_is_never_used_again",
        ),
    ),
    Mutation(
        "an absence counts only once an accepted key must show",
        (
            Edit(
                "reconciliation/evidence.py",
                "    if asked_at < visible_from(doubt, capabilities, timeout_seconds):\n        return Finding.ASK_LATER\n",
                "",
            ),
        ),
        (
            "unit/test_evidence.py::test_an_absence_counts_only_when_visible_and_retained_and_the_second_only_apart",
        ),
    ),
    Mutation(
        "an absence counts only the second time",
        (
            Edit(
                "reconciliation/evidence.py",
                "    if doubt.absent_at is None:\n        return Finding.ABSENT_ONCE\n",
                "    if doubt.absent_at is None:\n        return Finding.DISPROVED\n",
            ),
        ),
        ("delivery/test_unknowns.py::test_an_absence_leads_to_a_resend_only_the_second_time_and_apart",),
    ),
    Mutation(
        "an absence counts only while a known key is found",
        (
            Edit(
                "reconciliation/evidence.py",
                "    if isinstance(answer, LookUpFailed) or not control_found:\n",
                "    if isinstance(answer, LookUpFailed):\n",
            ),
        ),
        (
            "delivery/test_unknowns.py::test_an_absence_counts_for_nothing_while_no_known_message_is_found",
            "delivery/test_unknowns.py::test_an_absence_counts_for_nothing_while_look_ups_miss_what_was_surely_sent",
        ),
    ),
    Mutation(
        "a re-send goes to the account of the ambiguous attempt",
        (
            Edit(
                "ledger/claims.py",
                '        _d.gateway == bindparam("by_gateway"),\n        _d.account == bindparam("by_account"),\n',
                "",
            ),
            Edit(
                "ledger/transitions.py",
                "    same_account = (_d.gateway == gateway, _d.account == account) if again else ()\n",
                "    same_account = ()\n",
            ),
        ),
        ("ledger/test_claims.py::test_an_unknown_is_sent_again_by_its_own_account_inside_the_keys_lifetime",),
    ),
    Mutation(
        "another account is not asked",
        (
            Edit(
                "ledger/doubts.py",
                "            _d.due_at <= now,\n            _d.gateway == gateway,\n            _d.account == account,\n",
                "            _d.due_at <= now,\n",
            ),
            Edit(
                "reconciliation/settle.py",
                "    ledger.transact(lambda conn: doubts.hold_other_accounts(conn, ids, name, account))\n",
                "",
            ),
        ),
        (
            "delivery/test_unknowns.py::test_another_account_neither_repeats_nor_asks_and_the_right_one_settles_it_later",
        ),
    ),
    Mutation(
        "an opt-out counts until the claim",
        (
            Edit(
                "ledger/claims.py",
                "    wanted = [row for row in rows if row.reason is None]\n",
                "    suppressed, wanted = [], rows\n",
            ),
        ),
        ("ledger/test_claims.py::test_an_opt_out_after_the_freeze_counts_until_the_claim",),
    ),
    Mutation(
        "an unknown to a suppressed address is not sent again",
        (
            Edit(
                "ledger/claims.py",
                "        ~exists().where(addressed, _suppressed(opened)),\n",
                "",
            ),
        ),
        ("ledger/test_claims.py::test_an_unknown_of_a_suppressed_address_stays_unknown",),
    ),
    Mutation(
        "a send's time-out fits its lease",
        (
            Edit(
                "delivery/loop.py",
                "        too_late = clock.now() > row.fence or now > row.start + SLACK\n",
                "        too_late = now > row.start + SLACK\n",
            ),
        ),
        ("delivery/test_concurrency.py::test_a_claim_that_is_used_too_late_is_released_before_the_wire",),
    ),
    Mutation(
        "a restored ledger doubts what its lost copy may have sent",
        (Edit("ledger/restored.py", "        after = 0\n", "        after = 1 << 60\n"),),
        ("delivery/test_restored.py::test_where_nothing_can_be_asked_everything_is_held_for_a_person",),
    ),
    Mutation(
        "a copy of the ledger sends nothing",
        (Edit("ledger/migrate.py", "    if row.fingerprint != fingerprint(conn):\n", "    if False:\n"),),
        ("delivery/test_restored.py::test_a_restored_copy_sends_nothing_until_it_is_bound",),
    ),
    Mutation(
        "a replay never moves what was accepted",
        (Edit("ledger/transitions.py", "        _CLEAR,\n        ~was_accepted,\n", "        _CLEAR,\n"),),
        ("ledger/test_transitions.py::test_a_replay_moves_nothing_that_was_ever_accepted",),
    ),
    Mutation(
        "an event of a claim under way waits for its end",
        (
            Edit(
                "ledger/event_effects.py",
                "    if row is None or row.state == State.CLAIMED:\n",
                "    if row is None:\n",
            ),
        ),
        ("ledger/test_provider_events.py::test_an_event_of_a_claim_under_way_waits_for_its_end",),
    ),
    Mutation(
        "a proof is never lowered",
        (Edit("ledger/transitions.py", "                _d.proof.in_(lower),\n", ""),),
        ("ledger/test_provider_events.py::test_what_a_look_up_has_proved_is_not_lowered_either",),
    ),
    Mutation(
        "an event is taken in once",
        (
            Edit(
                "ledger/provider_events.py",
                "    if not insert_new("
                "conn, provider_event, _row(conn, event, message if message is not None else pushed)):\n"
                "        return Receipt(Taken.DUPLICATE)\n",
                "    insert_new("
                "conn, provider_event, _row(conn, event, message if message is not None else pushed))\n",
            ),
        ),
        ("ledger/test_provider_events.py::test_an_event_that_comes_again_changes_nothing",),
    ),
    Mutation(
        "a topic is looked at before a certificate is fetched",
        (Edit("subscriber/events/ses.py", "        sns.require_ours(message, topics)\n", ""),),
        (
            "subscriber/test_events_authenticity.py::test_somebody_elses_topic_is_refused_before_anything_is_fetched",
        ),
    ),
)
