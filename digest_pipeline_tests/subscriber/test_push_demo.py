"""``digest demo --gateway https_push``: a real week through the TLS subscriber, judged by the provider's store."""

import pytest

from digest_pipeline_tests.harness.command import Shell

WEEK = "1997-W01"


@pytest.mark.slow
def test_a_harsh_week_through_the_tls_subscriber_loses_nobody_and_sends_nobody_twice(tmp_path):
    shell = Shell(tmp_path)
    said = shell.run("demo", "--gateway", "https_push", "--faults", "harsh", "--period", WEEK, "--json")
    assert said.code == 0, said.err[-3000:]
    found = said.json
    assert (found["gateway"], found["duplicates"], found["lost"]) == ("https_push", 0, 0)
    assert found["faults_not_hit"] == []
    assert found["states"]["unknown"] == 0
    assert (
        found["states"]["cleaned"] + found["states"]["failed"] + found["states"]["suppressed"]
        == found["eligible"]
    )
    for log in tmp_path.rglob("*.log"):
        assert "@" not in log.read_text(errors="replace").replace("localhost@", ""), log.name
        assert "request_failed" not in log.read_text(errors="replace")
