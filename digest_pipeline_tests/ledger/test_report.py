import csv
import json
from xml.etree import ElementTree

import pytest

from digest_pipeline.eligibility import source as customer_source
from digest_pipeline.eligibility.drift import Drift
from digest_pipeline.eligibility.freeze import freeze
from digest_pipeline.eligibility.source import Source
from digest_pipeline.errors import UnknownKeyError
from digest_pipeline.ledger import audit, reads
from digest_pipeline.ledger.audit import Action
from digest_pipeline.reconciliation.comparison import Comparison, Noted
from digest_pipeline.reconciliation.reporting import charts, csv_file
from digest_pipeline.reconciliation.reporting.report import write_report
from digest_pipeline.states import State
from digest_pipeline_tests.harness.ledgers import (
    LABEL,
    PERIOD,
    customer,
    frozen_period,
    migrated,
    plant,
    run_ledger_sql,
    run_sql,
    source_url,
    tiny_source,
    tiny_spec,
    write_customers,
)

SPEC = {"tenants": {"mode": "column"}}
_ATTEMPT = (
    "INSERT INTO attempt (token, manifest_id, ordinal, claimed_by, gateway, account, claimed_at, ended_at, stage, "
    "outcome, failure_class, charged, replayed) VALUES (:t, :m, :o, 'run-0/s1', 'sandbox', 'a1', :c, :e, "
    "'after_wire', :outcome, :class, :true, :false)"
)


def two_tenants(folder):
    """Customers 1 to 12 of acme, 13 to 24 of globex."""
    run_sql(folder, "SELECT 1")
    rows = [customer(n, tenant="acme" if n <= 12 else "globex") for n in range(1, 25)]
    write_customers(folder, rows)
    return Source(source_url(folder))


def plant_attempt(ledger, manifest_id, ordinal, token, outcome, failure_class=None, claimed_at=1_000):
    run_ledger_sql(
        ledger,
        _ATTEMPT,
        t=token,
        m=manifest_id,
        o=ordinal,
        c=claimed_at,
        e=claimed_at + 500,
        outcome=outcome,
        true=True,
        false=False,
        **{"class": failure_class},
    )


def rows_of(report):
    with report.csv.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def everything(report):
    parts = [report.csv.read_text("utf-8"), report.html.read_text("utf-8"), report.markdown]
    return "\n".join([*parts, json.dumps(report.numbers), json.dumps(report.table)])


@pytest.fixture
def digest(tmp_path):
    return tiny_spec(tmp_path, **SPEC)


@pytest.fixture
def mixture(tmp_path, ledger_url, digest):
    """Each state at least once in each of two tenants."""
    with migrated(ledger_url) as ledger, two_tenants(tmp_path) as source:
        acme, globex = frozen_period(ledger, digest, PERIOD, source)
        for manifest_id in (acme, globex):
            for ordinal, state in enumerate(State, start=1):
                plant(ledger, manifest_id, ordinal, state)
        plant(ledger, globex, 11, "sent")
        yield ledger, acme, globex


def report_of(ledger, digest, folder, comparison=None, **more):
    return write_report(ledger, digest, PERIOD, folder / "reports", comparison, "run-1", **more)


def test_every_customer_is_in_exactly_one_state(mixture, digest, tmp_path):
    ledger, _, _ = mixture
    report = report_of(ledger, digest, tmp_path)
    assert report.balanced
    assert report.numbers["eligible"] == 24
    assert sum(report.numbers[state] for state in State) == 24
    assert {state: report.numbers[state] for state in State} == {
        **dict.fromkeys(State, 2),
        State.PENDING: 5,
        State.SENT: 3,
    }
    for row in report.table:
        assert row["eligible"] == 12 == sum(row[state] for state in State)
        assert row["balanced"]


def test_the_list_has_one_row_for_each_customer_and_says_why(mixture, digest, tmp_path):
    ledger, acme, _ = mixture
    plant(ledger, acme, 4, "unknown", due_at=None, hold_reason="no_evidence", failure_class="ambiguous")
    plant(ledger, acme, 7, "failed", failure_class="recipient")
    rows = rows_of(report_of(ledger, digest, tmp_path))
    assert len(rows) == len({row["operation_key"] for row in rows}) == 24
    assert list(rows[0]) == list(csv_file.COLUMNS)
    states = {(row["tenant"], row["state"]) for row in rows}
    assert states == {(tenant, str(state)) for tenant in ("acme", "globex") for state in State}
    by_state = {row["state"]: row for row in rows if row["tenant"] == "acme"}
    assert by_state["unknown"]["reason"] == "no_evidence"
    assert by_state["failed"]["reason"] == "recipient"
    assert by_state["suppressed"]["reason"] == "opted_out"
    assert by_state["sent"]["finished_at"] == "1970-01-01T00:00:00.002Z"
    assert by_state["sent"]["proof"] == "accepted"
    assert by_state["retry"]["finished_at"] == by_state["retry"]["proof"] == ""


def test_the_size_of_the_pages_changes_nothing(mixture, digest, tmp_path, monkeypatch):
    ledger, _, _ = mixture
    whole = report_of(ledger, digest, tmp_path).csv.read_bytes()
    monkeypatch.setattr(csv_file, "PAGE", 5)
    assert report_of(ledger, digest, tmp_path).csv.read_bytes() == whole


def test_a_lost_delivery_is_shown_loudly(mixture, digest, tmp_path):
    ledger, acme, _ = mixture
    run_ledger_sql(ledger, "DELETE FROM content WHERE manifest_id = :m AND ordinal = 12", m=acme)
    run_ledger_sql(ledger, "DELETE FROM delivery WHERE manifest_id = :m AND ordinal = 12", m=acme)
    report = report_of(ledger, digest, tmp_path)
    assert not report.balanced
    assert report.numbers["balanced"] == 0
    assert report.numbers["unaccounted"] == 1
    assert "does not add up" in report.markdown
    page = report.html.read_text("utf-8")
    assert 'class="verdict bad"' in page
    assert "tenant acme: 1 of 12 customers are in no state" in page
    assert [row["state"] for row in rows_of(report)].count("missing") == 1
    assert [row["balanced"] for row in report.table] == [False, True]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE manifest SET entries = 11 WHERE id = :m", "1 deliveries too many for 11 customers"),
        ("UPDATE manifest SET selected = 30 WHERE id = :m", "30 rows selected, 12 eligible and 0 excluded"),
    ],
)
def test_counts_that_contradict_the_seal_are_shown_loudly(mixture, digest, tmp_path, statement, problem):
    ledger, acme, _ = mixture
    run_ledger_sql(ledger, statement, m=acme)
    report = report_of(ledger, digest, tmp_path)
    assert not report.balanced
    assert problem in report.html.read_text("utf-8")
    assert problem in report.markdown


def test_ids_that_look_like_formulas_are_neutralised(tmp_path, ledger_url):
    """The operation key of such an id is percent-encoded; a planted one is neutralised too."""
    digest = tiny_spec(tmp_path)
    ids = ["=1+1", "+44", "-5", "@SUM(A1)", "'=2", '"=3', "plain"]
    run_sql(tmp_path, "SELECT 1")
    write_customers(tmp_path, [customer(n, id=one) for n, one in enumerate(ids, start=1)])
    with migrated(ledger_url) as ledger, Source(source_url(tmp_path)) as source:
        (manifest_id,) = frozen_period(ledger, digest, PERIOD, source)
        run_ledger_sql(
            ledger,
            "UPDATE manifest_entry SET operation_key = '=cmd()' WHERE manifest_id = :m AND ordinal = 7",
            m=manifest_id,
        )
        rows = rows_of(report_of(ledger, digest, tmp_path))
    assert [row["customer_id"] for row in rows] == [*("'" + one for one in ids[:-1]), "plain"]
    assert rows[-1]["operation_key"] == "'=cmd()"


def test_no_address_and_no_name_is_in_any_output(mixture, digest, tmp_path):
    ledger, _, _ = mixture
    action = Action(
        "late", "ann@firm.test", "asked by reader-3@example.test", digest.name, LABEL, "acme", ["k1", "k2"]
    )
    ledger.transact(lambda conn: audit.record(conn, action, {"manifests": 1}))
    run_ledger_sql(
        ledger,
        "INSERT INTO rate_gate (name, per_second, burst, next_free_at, halt_reason) "
        "VALUES ('sandbox:a1', 1, 1, 1, 'account: no mail for reader-4@example.test')",
    )
    comparison = Comparison(asked=1, missing_at_provider=Noted(1, ["tiny_digest:2025-W10:acme/customer-005"]))
    report = report_of(ledger, digest, tmp_path, comparison, drift=Drift(1, 0, 0))
    told = everything(report)
    assert "@" not in told.replace("@media", "")
    assert "Reader" not in told
    assert "asked by" in told  # the reason is told, without the address in it
    assert ">ann<" in told


def test_operator_actions_halts_and_holds_are_told(mixture, digest, tmp_path):
    ledger, acme, _ = mixture
    ledger.transact(
        lambda conn: audit.record(
            conn, Action("late", "ann", "the provider was down", digest.name, LABEL), {"hours": 24}
        )
    )
    run_ledger_sql(ledger, "UPDATE manifest SET window_closes_at = 2 WHERE id = :m", m=acme)
    report = report_of(ledger, digest, tmp_path)
    assert report.numbers["held_window_closed"] == 4  # three pending and one retry
    page = report.html.read_text("utf-8")
    assert "the provider was down" in page
    assert "hours 24" in page
    assert f"digest run --digest tiny_digest --period {LABEL} --allow-late" in report.markdown
    held = [row for row in rows_of(report) if row["reason"] == "window_closed"]
    assert {row["tenant"] for row in held} == {"acme"}
    assert len(held) == report.numbers["held_window_closed"]


def test_attempts_are_counted_by_class_with_how_often_they_were_tried_again(mixture, digest, tmp_path):
    ledger, acme, _ = mixture
    for token, outcome, failure_class in (
        (1, "not_sent", "connect"),
        (2, "not_sent", "connect"),
        (3, "throttled", "throttled"),
        (4, "accepted", None),
    ):
        plant_attempt(ledger, acme, 5, token, outcome, failure_class, claimed_at=1_000 * token)
    plant_attempt(ledger, acme, 7, 5, "not_sent", "connect")
    report = report_of(ledger, digest, tmp_path)
    assert report.numbers["attempts"] == 5
    assert report.numbers["attempts_connect"] == 3
    assert report.numbers["attempts_throttled"] == 1
    assert report.numbers["retry_rate"] == pytest.approx(3 / 5)
    row = '<td>not sent (connect)</td><td class="n">3</td><td class="n">2</td>'
    assert row in report.html.read_text("utf-8")


def test_the_wait_for_the_first_claim_counts_from_when_it_could_be_claimed(mixture, digest, tmp_path):
    ledger, acme, globex = mixture
    run_ledger_sql(ledger, "UPDATE manifest SET content_sealed_at = 5000000, window_opens_at = 2000000")
    for ordinal in range(1, 21):
        manifest_id, place = (acme, ordinal) if ordinal <= 10 else (globex, ordinal - 10)
        plant_attempt(
            ledger, manifest_id, place, ordinal, "accepted", claimed_at=5_000_000 + ordinal * 1_000_000
        )
        plant_attempt(ledger, manifest_id, place, 100 + ordinal, "accepted", claimed_at=900_000_000)
    numbers = report_of(ledger, digest, tmp_path).numbers
    assert numbers["claim_delay_p50_seconds"] == 10
    assert numbers["claim_delay_p95_seconds"] == 19
    assert numbers["claim_delay_max_seconds"] == 20


def test_a_duplicate_is_the_verdict(mixture, digest, tmp_path):
    ledger, acme, _ = mixture
    for token in (1, 2):
        plant_attempt(ledger, acme, 5, token, "accepted")
    report = report_of(ledger, digest, tmp_path)
    assert report.numbers["duplicates"] == 1
    assert "more than one message" in report.markdown.splitlines()[0]
    assert "digest trace tiny_digest:2025-W10:acme/customer-005" in report.markdown


def test_numbers_are_only_whole_and_real_numbers(mixture, digest, tmp_path):
    ledger, _, _ = mixture
    comparison = Comparison(asked=3, confirmed=3)
    numbers = report_of(ledger, digest, tmp_path, comparison, drift=Drift(1, 2, 3)).numbers
    assert {type(value) for value in numbers.values()} <= {int, float}
    assert numbers["provider_confirmed"] == 3
    assert numbers["drift_readdressed"] == 3


def test_skipped_customers_of_every_page_are_counted_with_their_reasons(tmp_path, ledger_url, monkeypatch):
    """OBS-03."""
    monkeypatch.setattr(customer_source, "ROWS_AT_ONCE", 4)
    digest = tiny_spec(tmp_path)
    run_sql(tmp_path, "SELECT 1")
    rows = [customer(n) for n in range(1, 13)]
    rows[1]["opted_in"] = 0
    rows[5]["email"] = "not an address"
    rows[9]["opted_in"] = 0
    write_customers(tmp_path, rows)
    with migrated(ledger_url) as ledger, Source(source_url(tmp_path)) as source:
        frozen_period(ledger, digest, PERIOD, source)
        report = report_of(ledger, digest, tmp_path)
    assert report.numbers["excluded"] == 3
    assert report.numbers["excluded_opted_out"] == 2
    assert report.numbers["selected"] == 12
    assert report.numbers["eligible"] == 9
    assert report.balanced
    page = report.html.read_text("utf-8")
    assert '<td>opted out</td><td class="n">2</td>' in page


def test_before_the_content_is_sealed_everyone_waits_for_it(tmp_path, ledger_url):
    digest = tiny_spec(tmp_path)
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, customers=3) as source:
        freeze(ledger, source, digest, PERIOD, "run-1")
        report = report_of(ledger, digest, tmp_path)
    assert report.balanced
    assert report.numbers["pending"] == report.numbers["held_content_not_sealed"] == 3
    assert {row["reason"] for row in rows_of(report)} == {"content_not_sealed"}


def test_a_period_without_a_customer_has_a_report_too(tmp_path, ledger_url):
    digest = tiny_spec(tmp_path)
    with migrated(ledger_url) as ledger, tiny_source(tmp_path, customers=0) as source:
        frozen_period(ledger, digest, PERIOD, source)
        report = report_of(ledger, digest, tmp_path)
    assert report.balanced
    assert report.numbers["coverage"] == 1.0
    assert rows_of(report) == []
    assert report.csv.read_text("utf-8") == ",".join(csv_file.COLUMNS) + "\n"


def test_a_period_that_was_never_frozen_has_nothing_to_report(tmp_path, ledger_url):
    digest = tiny_spec(tmp_path)
    with migrated(ledger_url) as ledger, pytest.raises(UnknownKeyError, match="no manifest"):
        report_of(ledger, digest, tmp_path)


def test_the_page_fetches_nothing_and_its_charts_are_well_formed_and_the_same_every_time(
    mixture, digest, tmp_path
):
    ledger, acme, _ = mixture
    plant_attempt(ledger, acme, 5, 1, "accepted")
    page = report_of(ledger, digest, tmp_path).html.read_text("utf-8")
    without_names = page.replace("http://www.w3.org/", "")
    assert "http" not in without_names.replace("http-equiv", "")
    assert "<script" not in page
    assert "<metadata" not in page
    drawings = [part.split("</svg>")[0] + "</svg>" for part in page.split("<svg")[1:]]
    assert len(drawings) == 3
    ids = [
        element.get("id")
        for one in drawings
        for element in ElementTree.fromstring("<svg" + one).iter()
        if element.get("id")
    ]
    assert len(ids) == len(set(ids))
    assert charts.states_chart({"sent": 3, "dead": 1}) == charts.states_chart({"sent": 3, "dead": 1})
    assert "sent 3, dead 1" in charts.states_chart({"sent": 3, "dead": 1}).alternative


def test_a_report_is_one_state_of_the_ledger_while_others_change_it(mixture, digest, tmp_path):
    ledger, acme, _ = mixture
    with ledger.snapshot() as conn:
        before = reads.summarise(conn, [acme]).states
        plant(ledger, acme, 1, "sent")
        assert reads.summarise(conn, [acme]).states == before
    with ledger.read() as conn:
        assert reads.summarise(conn, [acme]).states["sent"] == before["sent"] + 1
