from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml

from digest_pipeline.demo.play import environment
from digest_pipeline.errors import InputError, SpecError
from digest_pipeline.settings import DEMO_SPECS, PACKAGED_SPECS, Settings
from digest_pipeline.spec_loading import COMPONENT, load_file, load_folder
from digest_pipeline_tests.harness.ledgers import spec_fields, tiny_spec


def write(path: Path, fields: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(fields), encoding="utf-8")
    return path


def test_a_folder_with_two_digests_is_loaded_by_name(tmp_path: Path) -> None:
    tiny_spec(tmp_path)
    write(
        tmp_path / "second.yml",
        spec_fields(tmp_path, name="second", cadence="daily", first_period="2025-01-01"),
    )
    (tmp_path / "README.md").write_text("not a specification")
    assert sorted(load_folder(tmp_path)) == ["second", "tiny_digest"]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    tiny_spec(tmp_path)
    write(tmp_path / "zweitens.yaml", spec_fields(tmp_path))
    with pytest.raises(SpecError, match=r"zweitens\.yaml: name: a digest called 'tiny_digest' is already"):
        load_folder(tmp_path)


def test_a_folder_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no digest specification"):
        load_folder(tmp_path)
    with pytest.raises(SpecError, match=r"no such folder .*DIGEST_SPECS"):
        load_folder(tmp_path / "nowhere")


def test_a_specification_starts_from_another_and_replaces_what_it_names(tmp_path: Path) -> None:
    base = spec_fields(tmp_path, sending={"lanes": 7, "concurrency": 9})
    write(tmp_path / "base" / "base.yaml", base | {"content": base["content"] | {"template": "../template"}})
    path = write(tmp_path / "here" / "mine.yaml", {"extends": "../base/base.yaml", "sending": {"lanes": 3}})
    digest = load_file(path)
    assert (digest.sending.lanes, digest.sending.concurrency) == (3, 9)
    assert digest.content.template == (tmp_path / "template").resolve()


def test_sql_and_templates_are_found_beside_the_file_that_names_them(tmp_path: Path) -> None:
    fields = spec_fields(tmp_path)
    sql = fields["customers"].pop("sql")
    (tmp_path / "customers.sql").write_text(sql, encoding="utf-8")
    base = write(tmp_path / "base.yaml", fields | {"customers": {"sql_file": "customers.sql"}})
    child = write(tmp_path / "far" / "away.yaml", {"extends": "../base.yaml", "name": "away"})
    assert load_file(base).customers.sql == sql.strip()
    assert load_file(child).customers.sql == sql.strip()


def test_a_specification_that_replaces_the_sql_wins_over_the_files(tmp_path: Path) -> None:
    fields = spec_fields(tmp_path)
    (tmp_path / "customers.sql").write_text(fields["customers"].pop("sql"), encoding="utf-8")
    write(tmp_path / "base.yaml", fields | {"customers": {"sql_file": "customers.sql"}})
    mine = "SELECT 1 AS customer_id WHERE :period_start < :period_end"
    child = write(tmp_path / "mine.yaml", {"extends": "base.yaml", "customers": {"sql": mine}})
    assert load_file(child).customers.sql == mine


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [1", "is not valid YAML at line 1"),
        ("a: b: c", "is not valid YAML at line 1, column"),
        ("- a list", "must be a mapping"),
        ("", "must be a mapping"),
        ("name: one\n---\nname: two", r"wrong\.yaml: holds several documents \(---\)"),
        ("extends: nowhere.yaml", r"nowhere\.yaml: cannot be read"),
        ("extends: wrong.yaml", "goes round in a circle"),
        ("customers: {sql_file: gone.sql}", r"customers\.sql_file: .*gone\.sql cannot be read"),
        ("content: {template: gone}", r"content\.template: no such folder"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=said) as caught:
        load_file(path)
    assert str(tmp_path) in str(caught.value)


def test_components_in_one_file_are_sent_to_files_of_their_own(tmp_path: Path) -> None:
    component = yaml.safe_dump({"type": COMPONENT, "attributes": spec_fields(tmp_path)})
    file = tmp_path / "mail" / "defs.yaml"
    file.parent.mkdir()
    file.write_text(f"{component}---\n{component}", encoding="utf-8")
    with pytest.raises(SpecError, match=r"mail/defs\.yaml: holds several documents \(---\)"):
        load_folder(tmp_path)


def test_a_circle_of_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", {"extends": "b.yaml"})
    write(tmp_path / "b.yaml", {"extends": "a.yaml"})
    with pytest.raises(SpecError, match="circle"):
        load_file(tmp_path / "a.yaml")


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"title: K\xf6ln")
    with pytest.raises(SpecError, match=r"latin\.yaml: is not valid YAML"):
        load_file(tmp_path / "latin.yaml")


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text("name: !!python/object/apply:os.system ['true']")
    with pytest.raises(SpecError, match="is not valid YAML"):
        load_file(tmp_path / "evil.yaml")


@pytest.mark.parametrize("folder", [PACKAGED_SPECS, DEMO_SPECS])
def test_the_packaged_specifications_are_valid(folder: Path) -> None:
    assert "customer_digest" in load_folder(folder)


_VARIABLES = (
    "DIGEST_HOME",
    "DIGEST_LEDGER_URL",
    "DIGEST_SPECS",
    "DIGEST_ENVIRONMENT",
    "DIGEST_REPORTS",
    "DIGEST_SENDING",
)


def test_settings_have_defaults_and_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    found = Settings.from_environment()
    assert found == Settings(
        tmp_path / ".digest",
        f"sqlite:///{tmp_path / '.digest' / 'ledger.db'}",
        DEMO_SPECS,
        "local",
        tmp_path / ".digest" / "reports",
    )
    monkeypatch.setenv("DIGEST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DIGEST_ENVIRONMENT", "production")
    monkeypatch.setenv("DIGEST_LEDGER_URL", "postgresql://h/d")
    monkeypatch.setenv("DIGEST_REPORTS", "out")
    found = Settings.from_environment()
    assert (found.ledger_url, found.environment, found.reports) == (
        "postgresql://h/d",
        "production",
        tmp_path / "out",
    )


def test_an_empty_variable_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment that sets a variable to nothing means "not set", not a nameless environment."""
    monkeypatch.chdir(tmp_path)
    for name in _VARIABLES:
        monkeypatch.setenv(name, "")
    found = Settings.from_environment()
    assert (found.home, found.environment) == (tmp_path / ".digest", "local")
    assert found.ledger_url.startswith("sqlite:///")
    assert found.specs == DEMO_SPECS


def test_an_unknown_digest_is_answered_with_those_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_spec(tmp_path)
    monkeypatch.setenv("DIGEST_SPECS", str(tmp_path))
    found = Settings.from_environment()
    assert found.digest("tiny_digest").name == "tiny_digest"
    with pytest.raises(InputError, match=r"no digest called 'tiny' .*there are: tiny_digest"):
        found.digest("tiny")


def test_sending_is_switched_off_for_every_digest_and_by_one_word_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_spec(tmp_path)
    monkeypatch.setenv("DIGEST_SPECS", str(tmp_path))
    monkeypatch.delenv("DIGEST_SENDING", raising=False)
    assert Settings.from_environment().digest("tiny_digest").sending.enabled
    monkeypatch.setenv("DIGEST_SENDING", "off")
    assert not Settings.from_environment().digest("tiny_digest").sending.enabled
    monkeypatch.setenv("DIGEST_SENDING", "false")
    with pytest.raises(InputError, match="DIGEST_SENDING is on or off, not 'false'"):
        Settings.from_environment()


@pytest.mark.parametrize("variable", ["DIGEST_UI_URL", "DIGEST_REPORTS_URL"])
@pytest.mark.parametrize(
    "address",
    ["https://[secret/reports", "https://secret\u2100.test", "https://u:secret@host", "ftp://secret"],
)
def test_a_web_address_that_is_none_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, variable: str, address: str
) -> None:
    monkeypatch.setenv(variable, address)
    with pytest.raises(InputError, match=f"{variable} is the http") as refused:
        Settings.from_environment()
    assert "secret" not in "".join(traceback.format_exception(refused.value))


def test_the_demo_runs_in_its_own_process_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIGEST_EXECUTOR", "celery")
    monkeypatch.setenv("DIGEST_REPORTS_URL", "https://host.test/reports")
    with environment(tmp_path) as settings:
        assert (settings.executor, settings.reports_url) == ("in_process", "")
    found = Settings.from_environment()
    assert (found.executor, found.reports_url) == ("celery", "https://host.test/reports")
