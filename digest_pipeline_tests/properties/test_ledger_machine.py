"""The real ledger against the model, step by step, in any order that Hypothesis thinks of.

Every rule does one thing to the ledger as the package does it, and predicts the rows with the function of
the same name in ``lab.model``; afterwards they must be equal. Beside them a provider keeps count. Time is
virtual: a tick ends every lease and makes every key visible, a long wait makes every key too old.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from digest_pipeline.cleanup.clean import clean
from digest_pipeline.delivery.plan import SendPlan
from digest_pipeline.delivery.retry_policy import Budget, settlement
from digest_pipeline.delivery.settling import Result, settle, unsent
from digest_pipeline.errors import InputError
from digest_pipeline.gateways.base import Capabilities, Gateway
from digest_pipeline.keys import operation_key
from digest_pipeline.lab.model import model
from digest_pipeline.lab.model.cell import Cell, Provider
from digest_pipeline.lab.model.decisions import OUTCOMES, Answer, finding, settled
from digest_pipeline.lab.model.invariants import broken
from digest_pipeline.lab.model.row import Content, Now, Row
from digest_pipeline.lab.model.rules import TIMEOUT_SECONDS, Can, Rules
from digest_pipeline.lab.time_shift import pass_time
from digest_pipeline.ledger import acceptances, attempts, claims, doubts, reads, transitions
from digest_pipeline.ledger.claims import Claimed
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import metadata
from digest_pipeline.operations.close import close_period
from digest_pipeline.operations.decisions import Order
from digest_pipeline.operations.erase import erase_customer
from digest_pipeline.operations.replay import replay
from digest_pipeline.operations.resolve import Verdict, resolve
from digest_pipeline.outcomes import Absent, Accepted, Found, Outcome, Proof
from digest_pipeline.reconciliation.evidence import Finding
from digest_pipeline.reconciliation.settle import Answer as Asked
from digest_pipeline.reconciliation.settle import apply_answers
from digest_pipeline.spec import Digest
from digest_pipeline.states import CLAIMABLE, State
from digest_pipeline_tests.harness.ledgers import (
    LABEL,
    PERIOD,
    dump,
    frozen_period,
    migrated,
    tiny_source,
    tiny_spec,
)

NUMBERS = (1, 2, 3, 4)
LEASE = 600
TICK, LONG = 1_000, 100_000
"""Seconds: more than a lease and every delay; more than every lifetime. Both by far, so that how long the
test itself takes never matters."""
RESEND_LIFETIME = 24 * 3_600 - 3_600 - LEASE
LIFETIME = LATE = 24 * 3_600
TABLES = ("delivery", "manifest", "manifest_entry", "content", "ledger_identity", "rate_gate")
EMPTIED = ("attempt", "suppression", "operator_action")


@dataclass
class Stand:
    """What a plan needs of a gateway: nothing is sent, the provider is the machine's own."""

    capabilities: Capabilities
    name: str = "sandbox"
    account: str = "a1"


@dataclass
class Hand:
    """A claim in a worker's hand, and what came of it."""

    claimed: Claimed
    number: int
    at: int
    came_from: State
    last: bool
    barred: bool
    answer: Answer = Answer.NONE
    outcome: Outcome | None = None


@dataclass
class Question:
    """An answered look-up that is not settled yet, with what was true when it was asked."""

    number: int
    asked: Asked
    absent: int
    visible: bool
    retained: bool


@dataclass
class Times:
    """Virtual instants of one delivery."""

    claimed: int = 0
    doubted: int = 0
    ended: int = 0
    absent: int = 0
    late_until: int = 0
    forgotten_at: int = 0


@dataclass
class Stage:
    """One migrated ledger with one frozen period, put back as it was before every example."""

    ledger: Ledger
    digest: Digest
    manifest_id: int
    saved: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def save(self):
        self.saved = {table: dump(self.ledger, table) for table in TABLES}

    def reset(self):
        with self.ledger.write() as conn:
            for table in (*EMPTIED, "content", "delivery"):
                conn.execute(text(f"DELETE FROM {table}"))
            for table in ("delivery", "content"):
                conn.execute(metadata.tables[table].insert(), self.saved[table])
            for row in self.saved["manifest_entry"]:
                conn.execute(
                    text("UPDATE manifest_entry SET recipient = :recipient, name = :name WHERE ordinal = :o"),
                    {"recipient": row["recipient"], "name": row["name"], "o": row["ordinal"]},
                )
            for row in self.saved["manifest"]:
                conn.execute(
                    text("UPDATE manifest SET window_opens_at = 0, window_closes_at = :c, late_until = NULL"),
                    {"c": row["window_closes_at"]},
                )


def key_of(number):
    return operation_key("tiny_digest", LABEL, "default", f"customer-{number:03d}")


numbers = st.sampled_from(NUMBERS)
places = st.integers(0, 7)


def ends_something(act):
    """Let a rule that leads rows to an end be taken now and then only: they are what the others work on."""

    @functools.wraps(act)
    def counted(self, **drawn):
        self.ends += 1
        act(self, **drawn)

    return precondition(lambda self: self.ends < self.steps // 7)(counted)


class LedgerMachine(RuleBasedStateMachine):
    """Four deliveries, any number of workers, reconcilers and people."""

    def __init__(self, stage, can):
        super().__init__()
        self.stage, self.ledger, self.digest = stage, stage.ledger, stage.digest
        self.world = Rules(can)
        self.plan = SendPlan(
            stage.digest,
            (stage.manifest_id,),
            cast(Gateway, Stand(can.capabilities)),
            run_id="run-1",
            sender="s1",
        )
        stage.reset()
        self.clock, self.now, self.sent = 0, Now(), 0
        self.rows = {number: Row(budget=2) for number in NUMBERS}
        self.providers = {number: Provider() for number in NUMBERS}
        self.times = {number: Times() for number in NUMBERS}
        self.hands, self.over, self.questions = [], [], []
        self.steps, self.ends = 0, 0

    # What time makes true

    def seen(self, number):
        """Return the model's row with every flag that time sets."""
        row, times = self.rows[number], self.times[number]
        since = times.doubted if row.ambiguous else times.claimed
        return row._replace(
            lease_over=row.state is State.CLAIMED and times.claimed < self.clock,
            visible=times.ended < self.clock,
            fresh=self.clock - since < RESEND_LIFETIME,
            retained=self.clock - since < LIFETIME,
            absent=0 if not row.absent else (2 if times.absent < self.clock else 1),
            late=self.clock < times.late_until,
            # This digest's cleanup asks for no more than the acceptance.
            proved=row.state is State.SENT or row.state is State.CLEANED,
        )

    def put(self, number, row):
        """Take the model's row over, with the instants that this step sets."""
        old, times = self.rows[number], self.times[number]
        if row.state is State.UNKNOWN and row.ambiguous:
            if not old.ambiguous:
                times.doubted = times.claimed
            if row.ambiguous != old.ambiguous or (old.state is State.CLAIMED and row.ambiguous == row.token):
                times.ended = self.clock
        if row.absent and not old.absent:
            times.absent = self.clock
        self.rows[number] = row

    def make_due(self):
        """Let what will come due come due now: the model has no due times."""
        with self.ledger.write() as conn:
            conn.execute(text("UPDATE delivery SET due_at = 1 WHERE due_at IS NOT NULL"))

    @precondition(lambda self: self.hands or self._any(State.CLAIMED, State.UNKNOWN))
    @rule()
    def a_tick(self):
        self._pass(TICK)

    @precondition(lambda self: not self._any(State.PENDING, State.RETRY, State.CLAIMED, State.UNKNOWN))
    @rule()
    def nothing_is_left_to_happen(self):
        """So that a walk that has come to its end before its last step can stay there."""

    @rule()
    @ends_something
    def a_long_wait(self):
        self._pass(LONG)

    def _pass(self, seconds):
        pass_time(self.ledger, seconds)
        self.clock += seconds
        for number, provider in self.providers.items():
            # Requests under way are judged, or dropped, long before the tick is over.
            gone = self.clock >= self.times[number].forgotten_at
            self.providers[number] = provider._replace(orphans=(), known=() if gone else provider.known)

    @precondition(lambda self: not self.now.window_over)
    @rule()
    @ends_something
    def the_window_closes(self):
        with self.ledger.write() as conn:
            conn.execute(text("UPDATE manifest SET window_closes_at = 1, window_opens_at = 0"))
        self.now = self.now._replace(window_over=True)

    # Workers

    @precondition(lambda self: self._any(State.PENDING, State.RETRY))
    @rule(limit=st.integers(1, 3))
    def claim_due(self, limit):
        self.make_due()
        batch = self.ledger.transact(
            lambda conn: claims.claim_due(conn, self.stage.manifest_id, limit, self.plan.claimer)
        )
        expected, suppressed = set(), 0
        for number in self._waiting()[:limit]:
            row = self.seen(number)
            taken = model.claim(row, self.now, self.world)
            if taken is None:
                self.put(number, model.suppress(row))
                suppressed += 1
            else:
                expected.add(number)
        assert {one.ordinal for one in batch.claimed} == expected
        assert batch.suppressed == suppressed
        self._take(batch.claimed, lambda row: model.claim(row, self.now, self.world))

    def _waiting(self):
        rows = {number: self.seen(number) for number in NUMBERS}
        return [
            number
            for number, row in rows.items()
            if row.state in CLAIMABLE and model.may_be_sent(row, self.now, self.world)
        ]

    @precondition(lambda self: self.plan.resend_lifetime is not None and self._any(State.UNKNOWN))
    @rule(limit=st.integers(1, 3))
    def claim_unknown(self, limit):
        self.make_due()
        lifetime = self.plan.resend_lifetime
        assert lifetime is not None
        batch = self.ledger.transact(
            lambda conn: claims.claim_unknown(
                conn, self.stage.manifest_id, limit, self.plan.claimer, lifetime
            )
        )
        again = [n for n in NUMBERS if model.reclaim_unknown(self.seen(n), self.now, self.world)]
        assert [one.ordinal for one in batch.claimed] == again[:limit]
        self._take(batch.claimed, lambda row: model.reclaim_unknown(row, self.now, self.world))

    def _take(self, claimed, arrow):
        for one in claimed:
            number, before = one.ordinal, self.seen(one.ordinal)
            after = arrow(before)
            assert one.token > before.token, "every claim has a greater token"
            assert one.is_ambiguous == (before.ambiguous > 0)
            self.put(number, after._replace(token=one.token))
            self.times[number].claimed = self.clock
            self.hands.append(
                Hand(one, number, self.clock, before.state, before.budget <= 1, before.suppressed)
            )

    @precondition(lambda self: any(hand.answer is Answer.NONE for hand in self.hands))
    @rule(place=places, says=st.sampled_from(list(OUTCOMES)), arrives=st.booleans())
    def call(self, place, says, arrives):
        """Begin a call, if its fence allows, and get an answer; of a lost reply nobody knows if it arrived."""
        hand = self._pick([h for h in self.hands if h.answer is Answer.NONE], place)
        claimed = hand.claimed
        if hand.at < self.clock:
            hand.answer = Answer.RELEASED
        elif claimed.recipient is None or not claimed.document:
            hand.answer, hand.outcome = Answer.REFUSED, OUTCOMES[Answer.REFUSED]
        else:
            assert not hand.barred, "nobody is sent to who had opted out before the claim"
            hand.answer, hand.outcome = says, OUTCOMES[says]
            if says is Answer.ACCEPTED:
                hand.outcome = self._accept(hand.number)
            elif says is Answer.AMBIGUOUS and arrives:
                self._accept(hand.number)
            elif says is Answer.AMBIGUOUS:
                provider = self.providers[hand.number]
                self.providers[hand.number] = provider._replace(orphans=(*provider.orphans, 0))

    def _accept(self, number):
        provider = self.providers[number]
        if provider.known:
            return Accepted(f"m-{number}", replayed=True)
        known = (0,) if self.world.can.replays else ()
        self.times[number].forgotten_at = self.clock + LIFETIME
        self.providers[number] = provider._replace(messages=provider.messages + 1, accepted=(0,), known=known)
        return Accepted(f"m-{number}")

    @precondition(lambda self: any(p.orphans for p in self.providers.values()))
    @rule(place=places)
    def a_request_nobody_waits_for_is_accepted(self, place):
        number = self._pick([n for n in NUMBERS if self.providers[n].orphans], place)
        provider = self.providers[number]
        self.providers[number] = provider._replace(orphans=provider.orphans[1:])
        self._accept(number)

    @precondition(lambda self: self._any(State.UNKNOWN) and bool(self.world.can.look_up))
    @rule(shown=st.booleans())
    def ask_twice_apart(self, shown):
        """What a reconciler does over a while, so that an absence is not left to luck."""
        for _ in range(2):
            self._pass(TICK)
            self.ask(shown=shown)
            while self.questions:
                self.settle_an_answer(place=0)

    @precondition(lambda self: bool(self.hands))
    @rule(place=places)
    def settle_one(self, place):
        """Also of a claim that was lost long ago, and of one that never began its call."""
        hand = self._pick([h for h in self.hands if h.answer is not Answer.NONE] or self.hands, place)
        self.hands.remove(hand)
        if hand.answer is Answer.NONE:
            hand.answer = Answer.RELEASED
        self.over.append(hand)
        settle(self.ledger, self.plan.claimer, [self._result(hand)])
        row = self.seen(hand.number)
        _, after = settled(
            row,
            hand.claimed.token,
            hand.answer,
            hand.came_from,
            ambiguous=hand.came_from is State.UNKNOWN,
            last=hand.last,
            rules=self.world,
        )
        if after is None:
            recorded = row._replace(recorded=row.recorded or hand.answer is Answer.ACCEPTED)
            late = model.apply_acceptance(recorded) if hand.answer is Answer.ACCEPTED else None
            after = recorded if late is None else late
        self.put(hand.number, after)

    def _result(self, hand):
        claimed = hand.claimed
        if hand.answer is Answer.RELEASED:
            return Result(claimed, None, unsent(claimed))
        decided = settlement(
            hand.outcome,
            ambiguous=claimed.is_ambiguous,
            budget=Budget(claimed.attempts, 0.0),
            policy=self.digest.retry,
            evidence=self.plan.evidence,
            random=0.5,
        )
        return Result(claimed, hand.outcome, decided)

    @precondition(lambda self: self.over and self.steps % 4 == 0)
    @rule(place=places)
    def settle_again(self, place):
        """The answer to a commit was lost on the way: nothing changes, whatever came in between."""
        settle(self.ledger, self.plan.claimer, [self._result(self._pick(self.over, place))])

    @precondition(lambda self: self.hands and self.steps % 3 == 0)
    @rule(place=places)
    def a_worker_dies(self, place):
        self.hands.remove(self._pick(self.hands, place))

    @precondition(lambda self: self.now.window_over or self._any(State.CLAIMED))
    @rule()
    def a_pass_begins(self):
        delay = self.plan.evidence.delay
        micros = None if delay is None else int(delay * 1_000_000)

        def work(conn):
            expired = transitions.expire_lease(conn, self.plan.manifest_ids, "sandbox", "a1", micros)
            attempts.record_expired(conn, expired)
            for manifest_id in reads.closed_windows(conn, self.plan.manifest_ids):
                transitions.close_window(conn, manifest_id)

        self.ledger.transact(work)
        for number in NUMBERS:
            for arrow in (
                lambda row: model.expire_lease(row, self.world),
                lambda row: model.close_window(row, self.now),
            ):
                after = arrow(self.seen(number))
                if after is not None:
                    self.put(number, after)

    # Reconcilers and the provider

    @precondition(lambda self: self.world.can.look_up and self._any(State.UNKNOWN))
    @rule(shown=st.booleans())
    def ask(self, shown):
        """Ask about what is due. ``shown``: the provider lists what it need not list yet."""
        self.make_due()
        with self.ledger.read() as conn:
            rows = doubts.to_ask(conn, self.plan.manifest_ids, "sandbox", "a1", self.plan.resend_lifetime, 10)
        seen = {number: self.seen(number) for number in NUMBERS}
        can_be_sent_again = {n for n, row in seen.items() if self._again(row)}
        unknown = {n for n, row in seen.items() if row.state is State.UNKNOWN and n not in can_be_sent_again}
        # Only what was held, past its retention, is not asked about.
        assert {row.ordinal for row in rows} <= unknown
        assert {n for n in unknown if seen[n].retained} <= {row.ordinal for row in rows}
        for row in rows:
            known = seen[row.ordinal]
            listed = bool(self.providers[row.ordinal].accepted) and known.retained
            found = listed and (shown or known.visible)
            answer = Found(f"m-{row.ordinal}") if found else Absent()
            asked = Asked(row, answer, row.now)
            self.questions.append(Question(row.ordinal, asked, known.absent, known.visible, known.retained))

    def _again(self, row):
        still = row.fresh and model.may_be_sent(row, self.now, self.world) and not row.suppressed
        return self.plan.resend_lifetime is not None and still and row.content is Content.PRESENT

    @precondition(lambda self: bool(self.questions))
    @rule(place=places)
    def settle_an_answer(self, place):
        """Also one that was asked long before everything changed."""
        question = self._pick(self.questions, place)
        self.questions.remove(question)
        self.ledger.transact(lambda conn: apply_answers(conn, self.plan, [question.asked], True))
        found = isinstance(question.asked.answer, Found)
        verdict = finding(
            found, question.absent, visible=question.visible, retained=question.retained, rules=self.world
        )
        row, token = self.seen(question.number), question.asked.row.token
        after = None
        if verdict is Finding.SENT:
            after = model.apply_acceptance(row)
        elif verdict is Finding.DISPROVED:
            after = model.disprove_unknown(row, token, self.world)
        elif verdict is Finding.ABSENT_ONCE:
            after = model.note_absence(row, token)
        if after is not None:
            self.put(question.number, after)

    @precondition(lambda self: any(p.accepted for p in self.providers.values()))
    @rule(place=places)
    def an_acceptance_is_reported_late(self, place):
        number = self._pick([n for n in NUMBERS if self.providers[n].accepted], place)
        row = self.seen(number)
        evidence = self._at(number) | {"message_id": f"m-{number}", "proof": Proof.ACCEPTED}
        self.ledger.transact(lambda conn: acceptances.apply(conn, [evidence]))
        after = model.apply_acceptance(row)
        if after is not None:
            self.put(number, after)

    @precondition(lambda self: self._sent_and_kept())
    @rule(place=places)
    def the_provider_says_that_it_never_left(self, place):
        number = self._pick(self._sent_and_kept(), place)
        failed = self._at(number) | {"failure_class": "content"}
        assert self.ledger.transact(lambda conn: transitions.fail_sent(conn, [failed]))
        row = self.seen(number)
        self.providers[number] = self.providers[number]._replace(messages=0, voided=True)
        self.put(number, model.fail_sent(row, row.token))

    def _sent_and_kept(self):
        return [
            n
            for n in NUMBERS
            if self.rows[n].state is State.SENT
            and self.providers[n].messages
            and not self.providers[n].voided
        ]

    # Cleanup and people

    @rule()
    @ends_something
    def clean(self):
        clean(self.ledger, self.digest, self.plan.manifest_ids, "run-9")
        for number in NUMBERS:
            after = model.clean(self.seen(number), self.world)
            if after is not None:
                self.put(number, after)

    @precondition(lambda self: self._any(State.FAILED, State.DEAD))
    @rule(number=numbers)
    def replay(self, number):
        decision = replay(self.ledger, self._order(number), apply=True)
        row = self.seen(number)
        after = model.replay(row, row.token, 2)
        assert bool(decision.changed) == (after is not None)
        if after is not None:
            self.times[number].late_until = self.clock + LATE
            self.put(number, after)

    @precondition(lambda self: self._any(State.UNKNOWN))
    @rule(number=numbers, verdict=st.sampled_from(Verdict))
    def resolve(self, number, verdict):
        """A person says not-sent only of what was not sent and is not on its way."""
        row, provider = self.seen(number), self.providers[number]
        began = any(h.number == number and h.answer is Answer.NONE and h.at == self.clock for h in self.hands)
        if verdict is Verdict.NOT_SENT and (provider.accepted or provider.orphans or began):
            return
        resolve(self.ledger, self._order(number), verdict, apply=True)
        after = {
            Verdict.SENT: model.resolve_sent(row, row.token),
            Verdict.NOT_SENT: model.disprove_unknown(row, row.token, self.world),
            Verdict.WRITTEN_OFF: model.write_off(row, row.token),
        }[verdict]
        if after is not None:
            self.put(number, after)

    @rule(number=numbers)
    @ends_something
    def erase(self, number):
        erase_customer(
            self.ledger,
            f"customer-{number:03d}",
            digest=None,
            tenant=None,
            who="ann",
            reason="asked",
            apply=True,
        )
        row = model.erase(self.seen(number)) or self.seen(number)
        self.put(number, model.suppress(row) or row)

    @rule(number=numbers)
    @ends_something
    def opt_out(self, number):
        statement = text(
            "INSERT INTO suppression (tenant, address_hash, reason, since_at) "
            "SELECT 'default', address_hash, 'opted_out', 1 FROM manifest_entry WHERE ordinal = :n "
            "ON CONFLICT DO NOTHING"
        )
        with self.ledger.write() as conn:
            conn.execute(statement, {"n": number})
        self.put(number, self.rows[number]._replace(suppressed=True))

    @rule()
    @ends_something
    def close(self):
        if not self.now.window_over:
            with pytest.raises(InputError):
                close_period(self.ledger, self.digest, PERIOD, who="ann", reason="over", apply=True)
            return
        close_period(self.ledger, self.digest, PERIOD, who="ann", reason="over", apply=True)
        tokens = {row["ordinal"]: row["token"] for row in dump(self.ledger, "delivery")}
        newest = max(row.token for row in self.rows.values())
        for number in NUMBERS:
            row = self.seen(number)
            ended = model.close_manifest(row, self.now)
            if ended is not None:
                assert tokens[number] > newest
                ended = ended._replace(token=tokens[number])
            self.put(number, ended or model.close_window(row, self.now) or row)

    def _order(self, number):
        return Order(self.digest, PERIOD, (key_of(number),), "ann", "because")

    def _at(self, number):
        token = self.rows[number].token
        return {"manifest_id": self.stage.manifest_id, "ordinal": number, "token": token}

    def _any(self, *states):
        return any(row.state in states for row in self.rows.values())

    def _pick(self, found, place):
        return found[place % len(found)]

    # What must be equal, and what must hold

    @invariant()
    def the_ledger_is_what_the_model_says(self):
        self.steps += 1
        with self.ledger.read() as conn:
            rows = conn.execute(
                text(
                    "SELECT d.ordinal, d.state, d.token, d.ambiguous_at, d.ambiguous_token, d.absent_at, "
                    "d.attempts, c.document FROM delivery d LEFT JOIN content c "
                    "ON c.manifest_id = d.manifest_id AND c.ordinal = d.ordinal ORDER BY d.ordinal"
                )
            ).all()
        assert len(rows) == len(NUMBERS)
        for row in rows:
            expected = self.rows[row.ordinal]
            assert row.state == expected.state, row.ordinal
            assert (row.token or 0) == expected.token
            assert (row.ambiguous_at is not None) == (expected.ambiguous > 0)
            assert (row.ambiguous_token or 0) == expected.ambiguous
            assert (row.absent_at is not None) == (expected.absent > 0)
            assert max(1, 2 - row.attempts) == expected.budget
            assert _content(row.document) is expected.content

    @invariant()
    def everything_that_must_hold_does(self):
        for number in NUMBERS:
            provider = self.providers[number]
            assert provider.messages <= 1, "accepted twice"
            assert broken(Cell(self.seen(number), provider=provider)) == []

    def teardown(self):
        with self.ledger.read() as conn:
            # What a provider took back and was then given again is two messages, and no duplicate.
            voided = {key_of(n) for n in NUMBERS if self.providers[n].voided}
            assert set(reads.duplicate_sends(conn, self.plan.manifest_ids)) <= voided


def _content(document):
    if document is None:
        return Content.CLEANED
    return Content.PRESENT if document else Content.ERASED


@pytest.fixture
def stage(tmp_path, ledger_url):
    digest = tiny_spec(
        tmp_path,
        sending={"lease_seconds": LEASE, "timeout_seconds": TIMEOUT_SECONDS},
        retry={"max_attempts": 2, "base_seconds": 0.001, "cap_seconds": 0.001},
        cleanup={"delay_hours": 0},
    )
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, customers=len(NUMBERS)) as source:
        (manifest_id,) = frozen_period(ledger, digest, PERIOD, source)
        stage = Stage(ledger, digest, manifest_id)
        stage.save()
        yield stage


@pytest.mark.slow
@pytest.mark.parametrize("can", list(Can))
def test_the_ledger_does_what_the_model_does_in_any_order(stage, can):
    run_state_machine_as_test(
        cast(Any, lambda: LedgerMachine(stage, can)),
        settings=settings(
            max_examples=10,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
