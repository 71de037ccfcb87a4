"""What a person reads in Dagster: who owns an asset, what materialising it does, what became of everybody."""

from itertools import pairwise
from typing import Any

import dagster as dg
import pytest

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.defs.names import ASSETS, CODE_VERSION
from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.settings import Settings
from digest_pipeline_tests.harness.ledgers import LABEL, customer, tiny_spec, write_customers
from digest_pipeline_tests.harness.rim import Rim, failures

on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
OWNERS = ["team:growth", "data@firm.test"]
PLOTTED = {
    "eligible",
    "sent",
    "suppressed",
    "failed",
    "failed_recipient",
    "failed_content",
    "failed_connect",
    "failed_transient",
    "failed_window",
    "written_off",
    "unknown",
    "waiting",
    "held",
    "duplicates",
    "coverage",
    "sending_seconds",
    "messages_per_second",
    "seconds",
}
LATE = {"delivery_window": {"closes_after_hours": 72}}


def nodes(digest) -> list[Any]:
    graph = build_definitions({digest.name: digest}).resolve_asset_graph()
    return [graph.get(dg.AssetKey([digest.name, name])) for name in ASSETS]


def rows(table: Any) -> list[dict[str, Any]]:
    return [dict(record.data) for record in table.records]


def test_every_asset_says_whose_it_is_of_which_code_and_whether_materialising_it_sends(tmp_path):
    for node in nodes(tiny_spec(tmp_path, owners=OWNERS)):
        assert (node.group_name, list(node.owners), node.code_version) == (
            "tiny_digest",
            OWNERS,
            CODE_VERSION,
        )
        assert node.kinds
        assert node.tags.items() >= {("digest/cadence", "weekly"), ("digest/gateway", "sandbox")}
        sends = node.key.path[-1] == "delivery_outcomes"
        assert "**Materialising it" in node.description
        assert ("SENDS" in node.description) is sends
        assert ("Sends nothing" in node.description) is not sends
        assert (node.tags.get("digest/sends") == "mail") is sends


def test_a_digest_without_owners_is_nobodys(tmp_path):
    assert [list(node.owners) for node in nodes(tiny_spec(tmp_path))] == [[]] * len(ASSETS)


@pytest.mark.parametrize("owner", ["growth", "team:", "team:two words", "a@b", "Ann <ann@firm.test>", ""])
def test_an_owner_that_dagster_would_refuse_is_refused_with_its_field_and_without_an_address(tmp_path, owner):
    with pytest.raises(
        SpecError, match=r"owners.*number 2 is neither an e-mail address nor a team"
    ) as caught:
        tiny_spec(tmp_path, owners=["team:growth", owner])
    assert "@" not in str(caught.value).replace(str(tmp_path), "")


def test_the_same_counts_have_the_same_names_on_the_deliveries_and_on_the_report_and_all_plot(open_rim):
    rim = open_rim()
    write_customers(rim.folder, [customer(6, opted_in=0), customer(7, hidden=1)])
    assert failures(rim.materialise()) == {}
    delivered, report = rim.shown("delivery_outcomes"), rim.shown("reconciliation_report")
    for shown in (delivered, report):
        assert shown.keys() >= PLOTTED
        assert {name for name in PLOTTED if type(shown[name]) not in (int, float)} == set()
    assert {name: delivered[name] for name in PLOTTED - {"seconds"}} == {
        name: report[name] for name in PLOTTED - {"seconds"}
    }
    assert delivered["eligible"] == 6 == delivered["sent"] + delivered["suppressed"]
    assert (delivered["sent_now"], delivered["already_sent"]) == (5, 0)
    assert delivered["messages_per_second"] > 0
    in_states = [row["customers"] for row in rows(delivered["by_state"])]
    assert sum(in_states) == delivered["eligible"]
    assert rows(delivered["by_state"]) == rows(report["by_state"])
    assert rows(delivered["not_sent"]) == [
        {"outcome": "excluded", "reason": "opted_out", "customers": 1},
        {"outcome": "suppressed", "reason": "empty", "customers": 1},
    ]
    assert rim.shown("eligible_customers")["eligible"] == rim.shown("digest_rows")["eligible"] == 6
    assert rim.shown("digest_rows")["suppressed_empty"] == report["suppressed_empty"] == 1
    assert rim.shown("cleaned_digest_rows")["sent"] == delivered["sent"]


def test_materialising_again_changes_no_plot_but_what_this_run_did(open_rim):
    rim = open_rim()
    rim.materialise()
    before = rim.shown("delivery_outcomes")
    rim.materialise()
    after = rim.shown("delivery_outcomes")
    assert {name for name in PLOTTED if before[name] != after[name]} == {"seconds"}
    assert (after["sent_now"], after["already_sent"], after["seconds"]) == (0, 5, 0)
    assert "This run sent **0**; 5 had been sent before" in after["summary"]


def test_failures_are_told_by_class_with_the_command_that_comes_next(open_rim):
    rim = open_rim()
    rim.sandbox.control.script(Rule(Fault.INVALID_RECIPIENT_422, keys=[rim.key_of(2)]))
    rim.materialise()
    shown = rim.shown("delivery_outcomes")
    assert (shown["failed"], shown["failed_recipient"], shown["failed_connect"], shown["sent"]) == (
        1,
        1,
        0,
        4,
    )
    assert {"outcome": "failed", "reason": "recipient", "customers": 1} in rows(shown["not_sent"])
    assert f"`digest dead-letters list --digest tiny_digest --period {LABEL}`" in shown["summary"]


def test_a_held_week_says_so_on_the_asset_and_warns_in_a_check_of_it(open_rim):
    rim = open_rim(**LATE)
    done = rim.materialise()
    assert failures(done) == {}
    shown = rim.shown("delivery_outcomes")
    assert shown["status"] == "incomplete: held window_closed 5"
    assert "**Held: 5 of 5 are not sent, because their delivery window has closed**" in shown["summary"]
    assert "launchpad with allow_late and reason" in shown["summary"]
    command = f'digest run --digest tiny_digest --period {LABEL} --allow-late "REASON"'
    assert f"`{command}`" in shown["summary"]
    held = {one.check_name: one for one in done.get_asset_check_evaluations()}["nothing_is_held"]
    assert (held.passed, held.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert held.asset_key.path[-1] == "delivery_outcomes"
    assert held.metadata["next"].value == command


@on_sqlite
@pytest.mark.parametrize(
    ("sending", "pause", "reason"),
    [({"enabled": False}, None, "sending is disabled"), ({}, "digest", "sending is paused")],
)
def test_a_week_that_is_held_by_decision_names_the_decision(open_rim, sending, pause, reason):
    rim = open_rim(sending=sending)
    if pause:
        rim.sql("INSERT INTO pause (kind, name, since_at) VALUES ('digest', 'tiny_digest', 1)")
    rim.materialise()
    shown = rim.shown("delivery_outcomes")
    assert f"**Held: 5 of 5 are not sent, because {reason}**" in shown["summary"]
    assert (shown["held"], shown["waiting"], shown["sent"]) == (5, 5, 0)


@on_sqlite
def test_the_first_lines_of_every_asset_tell_a_person_what_happened(open_rim):
    rim = open_rim(cleanup={"delay_hours": 1000})
    rim.materialise()
    first = {asset: rim.shown(asset)["summary"] for asset in ASSETS}
    assert first["eligible_customers"].startswith("**Sealed now**\n\n5 eligible of 5 selected customers.")
    assert first["digest_rows"].startswith("**Rendered and sealed now**\n\n5 messages to send.")
    assert first["reconciliation_report"].startswith("**Settled**")
    assert "they go 1000 hours after it" in first["cleaned_digest_rows"]
    rim.materialise()
    assert rim.shown("eligible_customers")["summary"].startswith("**Unchanged")
    assert rim.shown("digest_rows")["summary"].startswith("**Unchanged")


@on_sqlite
def test_metadata_stays_small_however_many_tenants_there_are_and_shows_the_worst(open_rim):
    rim = open_rim(customers=0, tenants={"mode": "column"})
    write_customers(rim.folder, [customer(n, tenant=f"tenant-{n:03d}") for n in range(1, 61)])
    rim.sandbox.control.script(
        Rule(Fault.INVALID_RECIPIENT_422, keys=[f"tiny_digest:{LABEL}:tenant-060/customer-060"])
    )
    done = rim.materialise()
    table = rows(rim.shown("delivery_outcomes")["by_tenant"])
    assert len(table) == 30
    assert table[0] == {
        "tenant": "tenant-060",
        "eligible": 1,
        "sent": 0,
        "suppressed": 0,
        "failed": 1,
        "open": 0,
        "coverage": 0.0,
        "balanced": True,
    }
    told = [dg.serialize_value(event) for event in done.all_events]
    assert max(map(len, told)) < 50_000


def links(rim: Rim) -> tuple[Any, Any]:
    done = rim.materialise()
    (event,) = (
        one
        for one in done.get_asset_materialization_events()
        if one.materialization.asset_key.path[-1] == "reconciliation_report"
    )
    return event.materialization.metadata["report"], event.materialization.metadata["csv"]


@on_sqlite
def test_the_report_is_a_link_where_somebody_serves_the_folder_and_a_path_elsewhere(open_rim, monkeypatch):
    rim = open_rim()
    name = f"tiny_digest-{LABEL}"
    folder = rim.folder / "home" / "reports"
    assert links(rim) == tuple(
        dg.MetadataValue.path(str(folder / f"{name}.{kind}")) for kind in ("html", "csv")
    )
    monkeypatch.setenv("DIGEST_REPORTS_URL", "https://host.test/reports/")
    assert links(rim) == tuple(
        dg.MetadataValue.url(f"https://host.test/reports/{name}.{kind}") for kind in ("html", "csv")
    )


@pytest.mark.parametrize(
    "url",
    [
        "my-host/reports",
        "ftp://my-host",
        "https://me:secret@host/r",
        "https://host/r?token=1",
        "https://host/#a",
    ],
)
def test_a_reports_address_that_is_none_or_holds_a_secret_is_refused_without_repeating_it(monkeypatch, url):
    monkeypatch.setenv("DIGEST_REPORTS_URL", url)
    with pytest.raises(InputError, match="DIGEST_REPORTS_URL is the http") as caught:
        Settings.from_environment()
    assert url not in str(caught.value)


@on_sqlite
def test_a_halted_run_says_where_its_report_is_and_shows_the_same_counts(open_rim):
    rim = open_rim()
    rim.sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=100))
    done = rim.materialise()
    (failure,) = (one for one in done.all_events if one.is_step_failure)
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    shown = {name: value.value for name, value in data.metadata.items()}
    assert shown.keys() >= PLOTTED | {"report", "csv", "status", "summary"}
    assert (shown["waiting"], shown["sent"]) == (5, 0)


@on_sqlite
def test_a_plot_over_weeks_has_a_value_for_each_of_them(open_rim):
    """Absent is a gap, and a gap reads as "not run"."""
    rim = open_rim(days=["2025-03-05", "2025-03-19"])
    weeks = ("2025-W10", "2025-W11", "2025-W12")
    for label in weeks:
        assert rim.materialise(label).success
    for asset in ASSETS:
        names = [
            {name for name, value in rim.shown(asset, label).items() if type(value) in (int, float)}
            for label in weeks
        ]
        for one, other in pairwise(names):
            # Only measures of something that did not happen may be missing: a delay, a reason's count.
            assert {n for n in one ^ other if not n.endswith("_seconds")} == set(), asset
