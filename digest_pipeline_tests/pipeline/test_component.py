"""The pipeline as a component: what a specification says, a `defs.yaml` of another project says as well."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from digest_pipeline.defs.component import DigestAttributes, DigestComponent
from digest_pipeline.defs.names import ASSETS
from digest_pipeline.errors import SpecError
from digest_pipeline.ledger import migrate, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import COMPONENT, load_file, load_folder
from digest_pipeline_tests.harness.ledgers import LABEL, spec_fields
from digest_pipeline_tests.harness.sandbox import API_KEY

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "second_project"
SECONDS = 240

# Dagster 1.13 reads a component's file with a function of pydantic 1, and copies its definitions with parameters and
# classes of its own that are in beta. Ours are held to using none by test_definitions.py.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning"),
]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIGEST_SPECS", "DIGEST_SENDING", "DIGEST_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, **fields: Any) -> Path:
    """Write a component's folder, its attributes as a specification has them."""
    file = folder / "defs.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    document = {"type": COMPONENT, "attributes": spec_fields(folder, **fields)}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def test_the_component_is_where_the_specifications_reader_expects_it():
    assert f"{DigestComponent.__module__}.{DigestComponent.__qualname__}" == COMPONENT
    assert DigestComponent.get_model_cls() is DigestAttributes


def test_importing_the_package_does_not_import_dagster():
    code = "import sys, digest_pipeline, digest_pipeline.spec_loading; sys.exit('dagster' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def load_in(root: Path, digests: dict[str, dict[str, Any]]) -> dg.Definitions:
    """Return the definitions of a project that has these components, by folder."""
    with create_defs_folder_sandbox() as sandbox:
        for folder, fields in digests.items():
            attributes = spec_fields(root / folder, **fields)
            sandbox.scaffold_component(
                component_cls=DigestComponent,
                defs_path=folder,
                defs_yaml_contents={"type": COMPONENT, "attributes": attributes},
            )
        with sandbox.build_all_defs() as definitions:
            return definitions


def test_a_component_makes_what_its_specification_would(tmp_path):
    definitions = load_in(tmp_path, {"one": {"name": "first_one"}, "two": {"name": "second_one"}})
    dg.Definitions.validate_loadable(definitions)
    keys = {key.to_user_string() for key in definitions.resolve_all_asset_keys()}
    assert keys == {f"{digest}/{asset}" for digest in ("first_one", "second_one") for asset in ASSETS}
    jobs = [job.name for job in definitions.resolve_all_job_defs()]
    assert len(jobs) == len(set(jobs))
    assert {"first_one_weekly", "second_one_checks", "replay", "pause"} <= set(jobs)


def test_two_components_of_one_name_are_refused(tmp_path):
    with pytest.raises(Exception, match="Error while building definitions") as raised:
        load_in(tmp_path, {"one": {}, "two": {}})
    causes = "".join(traceback.format_exception(raised.value))
    assert "two digest components are called 'tiny_digest'" in causes


@pytest.mark.parametrize(
    "changes",
    [
        {"cadense": "weekly"},
        {"time_zone": "Europe/Berlinn"},
        {"rate": {"per_second": 100, "burst": 1}},
        {"customers": {"sql": "SELECT 1"}},
        {"content": {"template": "nowhere"}},
        {"customers": {"sql_file": "missing.sql"}},
    ],
)
def test_a_wrong_field_gets_the_same_message_as_in_a_specification(tmp_path, changes):
    file = written(tmp_path, **changes)
    with pytest.raises(SpecError) as as_specification:
        load_file(file)
    context = dg.ComponentTree.for_test().load_context
    with pytest.raises(SpecError) as as_component:
        DigestComponent.load(
            DigestAttributes.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))["attributes"]),
            context.for_path(tmp_path),
        )
    assert str(as_component.value) == str(as_specification.value)


def test_paths_start_at_the_components_folder_and_the_schema_names_every_field(tmp_path):
    (tmp_path / "who.sql").write_text(
        "SELECT id AS customer_id, email AS recipient FROM c WHERE d >= :period_start AND d < :period_end",
        encoding="utf-8",
    )
    fields = spec_fields(tmp_path)
    fields["customers"] = {"sql_file": "who.sql"}
    digest = DigestComponent.load(
        DigestAttributes.model_validate(fields), dg.ComponentTree.for_test().load_context.for_path(tmp_path)
    ).digest
    assert "FROM c" in digest.customers.sql
    assert digest.content.template == tmp_path / "template"
    schema = DigestAttributes.model_json_schema()
    assert set(schema["properties"]) == {*Digest.model_fields, "extends"}
    assert schema["additionalProperties"] is False


def test_sending_switched_off_for_the_installation_holds_for_components_too(tmp_path, monkeypatch):
    monkeypatch.setenv("DIGEST_SENDING", "off")
    digest = DigestComponent.load(
        DigestAttributes.model_validate(spec_fields(tmp_path)),
        dg.ComponentTree.for_test().load_context.for_path(tmp_path),
    ).digest
    assert not digest.sending.enabled


def test_the_command_line_reads_the_components_of_a_project_and_no_others(tmp_path):
    written(tmp_path / "defs" / "one", name="first_one")
    written(tmp_path / "defs" / "mail" / "two", name="second_one")
    other = tmp_path / "defs" / "other"
    other.mkdir()
    (other / "defs.yaml").write_text("type: their.Component\nattributes: {}\n---\n{}\n", encoding="utf-8")
    assert set(load_folder(tmp_path / "defs")) == {"first_one", "second_one"}


# The example, through the commands a person types.


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, with customers of one week."""
    folder = tmp_path_factory.mktemp("second") / "project"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dagster.yaml").write_text(
        "telemetry: {enabled: false}\nnux: {enabled: false}\n", encoding="utf-8"
    )
    return folder


def call(project: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIGEST_", "DAGSTER_"))}
    paths = [str(project / "src"), kept.get("PYTHONPATH", "")]
    return subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:]],
        cwd=project,
        env=kept
        | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "DAGSTER_HOME": str(project), "COLUMNS": "200"}
        | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("check", "yaml"), ("check", "defs"), ("list", "defs", "--json"), ("list", "components")]
)
def test_dg_reads_the_second_project(project, command):
    done = call(project, "dg", *command)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Warning" not in said
    if command[:2] == ("list", "defs"):
        keys = {one["asset_key"] for one in json.loads(done.stdout)["assets"]}
        assert keys == {"weekly_sales", *(f"weekly_digest/{name}" for name in ASSETS)}
    if command[:2] == ("list", "components"):
        assert COMPONENT in said


@pytest.mark.slow
def test_dg_names_the_field_that_is_wrong_in_a_components_file(project, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    file = copy / "src" / "second_project" / "defs" / "weekly_digest" / "defs.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("time_zone:", "timezone:"), encoding="utf-8")
    checked = call(copy, "dg", "check", "yaml")
    assert checked.returncode == 1
    assert "timezone" in checked.stdout + checked.stderr
    loaded = call(copy, "dg", "check", "defs", "--no-check-yaml")
    assert loaded.returncode == 1
    assert "timezone: no such field; did you mean 'time_zone'?" in loaded.stdout + loaded.stderr


@pytest.mark.slow
def test_dg_scaffolds_a_digest_that_loads(project, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    made = call(copy, "dg", "scaffold", "defs", COMPONENT, "monthly-news")
    assert made.returncode == 0, made.stdout + made.stderr
    digests = load_folder(copy / "src" / "second_project" / "defs")
    assert set(digests) == {"weekly_digest", "monthly_news"}
    checked = call(copy, "dg", "check", "defs")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, str]:
    """The shop's customers, a ledger, and what names them."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as conn, conn:
        conn.execute("CREATE TABLE customers (id TEXT, email TEXT, name TEXT)")
        conn.execute("CREATE TABLE orders (customer_id TEXT, ordered_on TEXT, article TEXT)")
        for number in range(6):
            conn.execute(
                "INSERT INTO customers VALUES (?, ?, ?)",
                (f"c{number}", f"reader-{number}@example.com", f"Reader {number}"),
            )
            conn.execute("INSERT INTO orders VALUES (?, ?, ?)", (f"c{number}", "2025-03-05", "a bell"))
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger(ledger) as opened:
        migrate.upgrade(opened, "local")
    return {
        "SHOP_DATABASE_URL": f"sqlite:///{tmp_path / 'shop.db'}",
        "DIGEST_LEDGER_URL": ledger,
        "DIGEST_HOME": str(tmp_path / "home"),
        "DIGEST_SPECS": "src/second_project/defs",
    }


@pytest.mark.slow
def test_a_partition_of_the_second_project_is_launched_twice_and_sent_once(project, shop, sandbox):
    late = {"allow_late": True, "reason": "a test of the example", "by": "tester"}
    ops = {"weekly_digest__plan_delivery": {"config": late}}
    config = json.dumps({"ops": {"weekly_digest__delivery_outcomes": {"ops": ops}}})
    launch = (
        "dg",
        "launch",
        "--assets",
        'key:"weekly_digest/*"',
        "--partition",
        f"{LABEL}-1",
        "--config-json",
    )
    to = {"DIGEST_SANDBOX_URL": sandbox.url, "DIGEST_SANDBOX_API_KEY": API_KEY}
    for _ in range(2):
        done = call(project, *launch, config, **shop, **to)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert sandbox.oracle().accepted_count() == 6
    assert list(sandbox.oracle().duplicates()) == []
    with Ledger(shop["DIGEST_LEDGER_URL"]) as ledger, ledger.read() as conn:
        summary = reads.summarise(conn, reads.manifest_ids(conn, "weekly_digest", LABEL))
    assert summary.is_settled
    assert summary.states["sent"] + summary.states["cleaned"] == 6
    asked = call(project, "digest", "status", "--digest", "weekly_digest", "--json", **shop)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)
