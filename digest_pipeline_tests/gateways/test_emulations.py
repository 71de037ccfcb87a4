"""The emulated providers themselves: what they are judged by must not depend on what they judge."""

import ast
import base64
import json
import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from digest_pipeline import gateways
from digest_pipeline.gateways.registry import KINDS
from digest_pipeline.lab import providers
from digest_pipeline.lab.providers.process import ProviderProcess
from digest_pipeline.lab.providers.registry import EMULATIONS
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.outcomes import Accepted, Ambiguous
from digest_pipeline_tests.gateways.stands import STANDS, EmulatedStand, digest, digests
from digest_pipeline_tests.gateways.test_contract import send, send_batch

FOLDER = Path(providers.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
SHARED = {"digest_pipeline.gateways.base"}
"""Only the name of an idempotency mode, which is a setting of the lab's servers."""


def imports(module):
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_an_emulation_shares_no_code_with_the_gateways(module):
    ours = {name for name in imports(module) if name.startswith("digest_pipeline")}
    assert {name for name in ours if not name.startswith("digest_pipeline.lab")} <= SHARED


def test_no_emulation_is_reached_by_a_gateway():
    folder = Path(gateways.__file__).parent
    assert not [
        (module.name, name)
        for module in folder.glob("*.py")
        for name in imports(module)
        if name.startswith("digest_pipeline.lab")
    ]


@pytest.mark.parametrize("name", sorted(EMULATIONS))
def test_an_emulation_says_what_is_documented_and_what_is_assumed(name):
    text = sys.modules[EMULATIONS[name].__module__].__doc__ or ""
    assert "Documented" in text
    assert "Assumed" in text
    assert "https://" in text


@pytest.mark.parametrize("name", sorted(EMULATIONS))
def test_a_gateway_of_that_name_exists(name):
    assert name in KINDS


def test_the_command_says_where_it_serves_and_refuses_an_unknown_provider(tmp_path):
    command = [sys.executable, "-m", "digest_pipeline.lab.providers", "--port", "0"]
    unknown = subprocess.run([*command, "--provider", "nobody"], capture_output=True, text=True, timeout=60)
    assert unknown.returncode == 2
    assert "resend" in unknown.stderr
    with subprocess.Popen(
        [*command, "--provider", "resend", "--store", str(tmp_path / "r.db"), "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.communicate()
    assert ready["url"].startswith("http://127.0.0.1:")
    assert process.returncode == 0


def test_what_was_accepted_and_under_which_keys_outlives_a_kill(tmp_path):
    with ProviderProcess("resend", tmp_path / "resend.db", api_key="re_1") as process:
        stand = EmulatedStand("resend", process, {"api_key": "re_1"})
        process.control.script(Rule(Fault.RESET_AFTER_ACCEPT, keys=[digest().operation_key]))
        (lost,) = send(stand, digest())
        first = send_batch(stand, digests(3), "batch-1")
        process.restart()
        (again,) = send(stand, digest())
        second = send_batch(stand, digests(3), "batch-1")
    assert isinstance(lost, Ambiguous)
    assert isinstance(again, Accepted)
    assert first == second
    assert list(process.oracle().duplicates()) == []
    assert process.oracle().accepted_count() == 4


@pytest.mark.parametrize("stand", ["resend"], indirect=True)
def test_past_its_lifetime_a_key_protects_nothing(stand):
    """DUP-34."""
    stand.process.control.change(key_lifetime=0.0)
    try:
        send(stand, digest(), digest())
    finally:
        stand.process.control.change(key_lifetime=stand.process.settings.key_lifetime)
    assert stand.accepted(digest().operation_key) == 2


TWO = ["a@example.test", "b@example.test"]
NAMED = {"X-Operation-Key": "d:p:c"}
PLANTED = {
    "resend": (
        "/emails",
        lambda secrets: {"Authorization": f"Bearer {secrets[0]}"},
        {"from": "s@b.test", "to": TWO[:1], "bcc": TWO[1:], "subject": "s", "text": "t", "headers": NAMED},
    ),
    "postmark": (
        "/email",
        lambda secrets: {"X-Postmark-Server-Token": secrets[0]},
        {
            "From": "s@b.test",
            "To": '"Doe, Jo" <a@example.test>, b@example.test',
            "Subject": "s",
            "TextBody": "t",
        },
    ),
    "mailjet": (
        "/v3.1/send",
        lambda secrets: {"Authorization": "Basic " + base64.b64encode(":".join(secrets).encode()).decode()},
        {
            "Messages": [
                {
                    "From": {"Email": "s@b.test"},
                    "To": [{"Email": address} for address in TWO],
                    "Subject": "s",
                    "TextPart": "t",
                }
            ]
        },
    ),
}


@pytest.mark.parametrize("stand", sorted(PLANTED), indirect=True)
def test_a_second_recipient_would_be_seen(stand):
    """SEC-04, planted: the count is the provider's own reading, not ours."""
    path, headers, body = PLANTED[stand.kind]
    post = Request(stand.process.url + path, json.dumps(body).encode(), headers(stand.secrets), method="POST")
    with build_opener(ProxyHandler({})).open(post, timeout=30) as reply:
        assert reply.status == 200
    assert stand.with_other_than_one_recipient() == 1


@pytest.mark.parametrize("stand", sorted(STANDS.keys() & EMULATIONS.keys()), indirect=True)
def test_no_address_is_in_the_store(stand):
    send(stand, digest(recipient="very.personal@example.test"))
    data = b"".join(
        path.read_bytes() for path in stand.process.store.parent.glob(f"{stand.process.store.name}*")
    )
    assert b"very.personal" not in data
