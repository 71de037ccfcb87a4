"""Somebody's mail reached a stranger, or a secret a log. Here neither leaves its place."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import quote

import pytest
import structlog

from digest_pipeline.addresses import address_hash
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.ledger import letters
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.schema import metadata
from digest_pipeline.operations.decisions import Order
from digest_pipeline.operations.replay import replay
from digest_pipeline.telemetry import configure_logging
from digest_pipeline_tests.cases.stage import NAMED, provider_that_says, sends, shell_before
from digest_pipeline_tests.harness.command import Said, Shell
from digest_pipeline_tests.harness.delivering import NEITHER, assert_once_each, key_of
from digest_pipeline_tests.harness.ledgers import LABEL, customer, dump, plant, write_customers
from digest_pipeline_tests.harness.raw_http import answer
from digest_pipeline_tests.harness.rim import write_spec

SECRET = "S3cr3t@key/with+odd=chars"
FORMS = (SECRET, quote(SECRET, safe=""), repr(SECRET)[1:-1], base64.b64encode(SECRET.encode()).decode())
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)


@contextmanager
def everything_logged() -> Iterator[None]:
    """Log all there is to standard error, as a process does that was asked to."""
    before = structlog.get_config()
    configure_logging("DEBUG")
    try:
        yield
    finally:
        structlog.configure(**before)


@on_sqlite
@pytest.mark.parametrize("status", [401, 403, 409, 413, 422, 429, 500, 503])
def test_a_key_that_the_provider_echoes_is_in_no_table_and_no_log(open_desk, capfd, status):
    """SEC-01, SEC-02: in every form in which a text can hold it."""
    desk = open_desk(2, can=NEITHER, sending={"in_run_wait_seconds": 0})
    said = " ".join(FORMS)
    body = f'{{"name": "some_error", "message": "Bearer {said} for reader-1@example.test"}}'.encode()
    with everything_logged(), provider_that_says(answer(status, body)) as server:
        desk.deliver(desk.gateway(url=server.url, api_key=SECRET))
    assert server.requests
    logged = "".join(capfd.readouterr())
    assert "attempt_ended" in logged
    kept = [repr(dump(desk.ledger, table)) for table in metadata.tables if table != "manifest_entry"]
    for text in (logged, *kept):
        assert not [form for form in (*FORMS, "S3cr3t", "reader-1@") if form in text]


def two_tenants(open_desk_for):
    """Return a desk of two tenants whose customers have the same ids, all of them dead letters, and the keys."""
    desk = open_desk_for(
        *(customer(n, tenant="t1") for n in (1, 2)),
        *(customer(n, id=f"customer-00{n - 2}", tenant="t2") for n in (3, 4)),
        tenants={"mode": "column"},
    )
    for row in desk.rows():
        plant(desk.ledger, row.manifest_id, row.ordinal, "failed", failure_class="recipient")
    return desk, [f"tiny_digest:2025-W10:{tenant}/customer-00{n}" for tenant in ("t1", "t2") for n in (1, 2)]


@on_sqlite
@pytest.mark.slow
def test_a_replay_that_names_no_tenant_no_keys_or_no_period_is_refused(open_desk_for, ledger_url, tmp_path):
    """SEC-14."""
    desk, keys = two_tenants(open_desk_for)
    shell = shell_before(tmp_path, ledger_url)
    replays = ("replay", "--apply", "--reason", "mended")
    no_keys = shell.run(*replays, *NAMED, "--tenant", "t1")
    no_tenant = shell.run(*replays, *NAMED, "--keys", keys[0])
    far_past = shell.run(*replays, "--digest", "tiny_digest", "--period", "2019-W10", "--keys", keys[0])
    assert (no_keys.code, "--keys" in no_keys.err) == (2, True)
    assert (no_tenant.code, "--tenant" in no_tenant.error) == (2, True)
    assert (far_past.code, "2019-W10 is not one of" in far_past.error) == (2, True)
    dry = shell.run(
        "replay", "--reason", "mended", *NAMED, "--tenant", "t1", "--keys", keys[0], "--json"
    ).json
    assert (dry["period"], dry["tenant"], dry["would_change"], dry["applied"]) == (LABEL, "t1", 1, False)
    assert desk.counts() == {"failed": 4}


def test_a_replay_reaches_the_tenant_and_the_period_of_its_keys_and_no_other(open_desk_for):
    """SEC-14: in a ledger of two tenants whose customers have the same ids."""
    desk, keys = two_tenants(open_desk_for)
    with desk.ledger.read() as conn:
        listed = letters.dead_letters(conn, "tiny_digest", LABEL, tenant="t2")
    assert [one.operation_key for one in listed] == keys[2:]

    def order(label, *chosen):
        return Order(desk.digest, desk.digest.period(label), chosen, "ann", "mended", "t2")

    week_before = replay(desk.ledger, order("2025-W09", *keys[2:]), apply=True)
    assert week_before.reasons == {"not a delivery of this period": 2}
    dry = replay(desk.ledger, order(LABEL, *keys), apply=False)
    assert (dry.changed, dry.reasons) == (keys[2:], {"a delivery of another tenant": 2})
    assert desk.counts() == {"failed": 4}
    assert replay(desk.ledger, order(LABEL, *keys), apply=True).changed == keys[2:]
    desk.deliver()
    assert list(desk.sandbox.oracle().accepted_keys()) == keys[2:]


def opt_out(desk, number):
    desk.sql(
        "INSERT INTO suppression (tenant, address_hash, reason, since_at) VALUES ('default', :h, 'opted_out', 1)",
        h=address_hash(f"reader-{number}@example.test"),
    )


def test_who_opts_out_while_the_others_are_being_sent_gets_nothing(open_desk):
    """SEC-15: the rate lets one through a second, and the third says no in between."""
    desk = open_desk(3, can=NEITHER, rate={"per_second": 1, "burst": 2}, sending={"lanes": 1})
    run = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=1)
    opt_out(desk, 3)
    assert run.result().suppressed == 1
    row = desk.row(3)
    assert (row.state, row.suppression, row.token) == ("suppressed", "opted_out", None)
    assert len(dump(desk.ledger, "manifest_entry")) == 3
    assert_once_each(desk, range(1, 3))


def test_who_opts_out_while_the_provider_is_slow_gets_nothing(open_desk):
    """SEC-15: nothing that waits for a slow provider is claimed so early that nobody asks again."""
    desk = open_desk(4, can=NEITHER, sending={"concurrency": 1, "lanes": 1, "timeout_seconds": 20})
    desk.script(Fault.HELD_AFTER_ACCEPT, 1)
    run = desk.deliver_meanwhile()
    desk.sandbox.control.wait(accepted=1)
    for number in (2, 3, 4):
        opt_out(desk, number)
    desk.sandbox.control.release()
    run.result()
    assert desk.counts() == {"sent": 1, "suppressed": 3}
    assert sends(desk, 2) == []


FAULTS = (
    Fault.INVALID_RECIPIENT_422,
    Fault.THROTTLED_429,
    Fault.UNAVAILABLE_503,
    Fault.RESET_AFTER_ACCEPT,
    Fault.BAD_GATEWAY_502_AFTER_ACCEPT,
    Fault.TRUNCATED_JSON_AFTER_ACCEPT,
    Fault.HTML_200_AFTER_ACCEPT,
    Fault.SERVER_ERROR_500_BEFORE_ACCEPT,
)
WORDS = (SECRET, "marked.reader", "private.test", "Markedname", "marked-content", "look.at.it")
"""What must be in nothing that leaves the ledger: the key, addresses, names, content, a tester's address."""


def held_by(text: str) -> set[str]:
    """Return the words that a text holds: as they are, quoted, URL-encoded, or inside anything in base64."""
    lowered = text.lower()
    found = {
        word
        for word in WORDS
        for form in (word, repr(word)[1:-1], json.dumps(word)[1:-1], quote(word), quote(word, safe=""))
        if form.lower() in lowered
    }
    for token in re.findall(r"[A-Za-z0-9+/_-]{11,}", text):
        for start in range(4):
            part = token[start:].replace("-", "+").replace("_", "/")
            part = part[:-1] if len(part) % 4 == 1 else part
            data = base64.b64decode(part + "=" * (-len(part) % 4))
            found |= {word for word in WORDS if word.encode() in data}
    return found


def test_the_search_finds_a_word_in_every_encoding():
    for text in (
        SECRET,
        quote(SECRET, safe=""),
        base64.b64encode(f"\0user\0{SECRET}!".encode()).decode(),
        base64.urlsafe_b64encode(f"u:{SECRET}".encode()).decode().rstrip("="),
    ):
        assert held_by(f"said x{text}") == {SECRET}
    assert held_by("said nothing of it") == set()


def marked(number: int) -> dict[str, object]:
    return customer(
        number,
        email=f"marked.reader-{number}@private.test",
        name=f"Markedname{number} Person",
        item=f"marked-content-{number}",
        orders=("2025-03-05", "2025-03-12") if number == 1 else ("2025-03-05",),
    )


@pytest.fixture
def talked(tmp_path, sqlite_url) -> tuple[list[Said], str]:
    """All that commands said, at their most talkative, of a week of faults and of one at a provider that echoes."""
    (tmp_path / "specs").mkdir()
    write_spec(
        tmp_path / "specs",
        source={"env": "DIGEST_SOURCE_URL", "default": ...},
        sending={"timeout_seconds": 2},
    )
    write_customers(tmp_path, [marked(number) for number in range(1, 31)])
    said = " ".join((*FORMS, "marked.reader-1@private.test", "Markedname1 Person"))
    echo = answer(503, json.dumps({"name": "service_unavailable", "message": f"Bearer {said}"}).encode())
    with (
        provider_that_says(echo) as echoing,
        SandboxProcess(tmp_path / "sandbox.db", SandboxSettings(api_key=SECRET, seed=3)) as provider,
    ):
        variables = {
            "DIGEST_LEDGER_URL": sqlite_url,
            "DIGEST_SPECS": str(tmp_path / "specs"),
            "DIGEST_SOURCE_URL": f"sqlite:///{tmp_path / 'source.db'}",
            "DIGEST_SANDBOX_URL": provider.url,
            "DIGEST_SANDBOX_API_KEY": SECRET,
        }
        shell = Shell(tmp_path, variables)
        talk = partial(shell.run, "--log-level", "DEBUG")
        assert shell.run("db", "upgrade").code == 0
        provider.control.script(*(Rule(fault, keys=[key_of(n)]) for n, fault in enumerate(FAULTS, 1)))
        told = [talk("run", *NAMED), talk("worker", "--once"), talk("report", *NAMED)]
        told.append(
            talk("send-test", *NAMED, "--customer", "customer-001", "--to", "look.at.it@private.test")
        )
        next_week = (*NAMED[:-1], "2025-W11")
        told.append(talk("run", *next_week, DIGEST_SANDBOX_URL=echoing.url))
        assert echoing.requests
        assert len(provider.oracle().faults_hit()) == len(FAULTS)
    return told, sqlite_url


@pytest.mark.slow
def test_nothing_that_a_run_through_every_fault_leaves_holds_a_secret_an_address_a_name_or_content(
    talked, tmp_path
):
    """SEC-01, SEC-02: what commands say, Dagster's storage and logs, reports, and the ledger's own tables."""
    told, url = talked
    assert "attempt_ended" in "".join(one.err for one in told)
    for one in told:
        assert held_by(one.out + one.err) == set()
    home = tmp_path / ".digest"
    files = [path for part in ("dagster", "reports") for path in (home / part).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".db", ".html", ".csv"}
    leaks = {str(path): held_by(path.read_bytes().decode("utf-8", "replace")) for path in files}
    assert {name: found for name, found in leaks.items() if found} == {}
    # Where addresses and content belong, and nowhere else.
    private = {"manifest_entry", "content"}
    with Ledger(url) as ledger:
        kept = {
            table: held_by(repr(dump(ledger, table))) for table in metadata.tables if table not in private
        }
        assert "marked.reader" in held_by(repr(dump(ledger, "manifest_entry")))
    assert {table: found for table, found in kept.items() if found} == {}
