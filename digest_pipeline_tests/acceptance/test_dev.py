"""`digest dev`: the UI, the daemon and the sandbox as one command, on SQLite or PostgreSQL, that ends whole."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from digest_pipeline.defs.postgres_instance import SCHEMA
from digest_pipeline.ledger.schema import metadata
from digest_pipeline_tests.harness.command import Shell, free_port
from digest_pipeline_tests.harness.graphql import GraphQL, until
from digest_pipeline_tests.harness.ledgers import LABEL, customer, write_customers
from digest_pipeline_tests.harness.rim import write_spec

START, END = 240.0, 180.0
LATE = {"allow_late": True, "reason": "a test of the command", "by": "tester"}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with a specification, five customers, and a sandbox address nobody listens at."""
    (tmp_path / "specs").mkdir()
    write_spec(tmp_path / "specs")
    write_customers(tmp_path, (customer(number) for number in range(1, 6)))
    variables = {
        "DIGEST_HOME": str(tmp_path / "home"),
        "DIGEST_SPECS": str(tmp_path / "specs"),
        "DIGEST_SOURCE_URL": f"sqlite:///{tmp_path / 'source.db'}",
        "DIGEST_SANDBOX_URL": f"http://127.0.0.1:{free_port()}",
        "DIGEST_SANDBOX_API_KEY": "a-key-of-the-test",
    }
    return Shell(tmp_path, variables)


@contextmanager
def started(shell: Shell, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], GraphQL]]:
    """Run `digest dev` as a terminal would: leader of a process group. Yields once runs can be launched."""
    port = free_port()
    log = shell.folder / "dev.log"
    command = [str(Path(sys.executable).with_name("digest")), "dev", "--port", str(port), *arguments]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=shell.folder,
            env=shell.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            client = GraphQL(f"http://127.0.0.1:{port}", "digest_pipeline.definitions")

            def missing() -> str:
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                try:
                    return client.not_ready(daemon=True)
                except OSError as error:
                    return f"no answer yet: {error}"

            until(missing, lambda found: found == "", "digest dev to be ready", START)
            yield process, client
        finally:
            if process.poll() is None:
                process.kill()


def processes_of(shell: Shell) -> list[str]:
    """Return the command lines of all processes that were given this folder, however they were started."""
    mark = f"DIGEST_HOME={shell.variables['DIGEST_HOME']}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has just ended, or is not ours
    return found


def tables(url: str, schema: str) -> set[str]:
    engine = create_engine(url)
    try:
        return set(inspect(engine).get_table_names(schema=schema))
    finally:
        engine.dispose()


def run_sql(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(text(statement))
    engine.dispose()


@pytest.mark.postgresql
@pytest.mark.daemon
@pytest.mark.slow
def test_on_postgresql_ledger_and_dagster_share_the_database_and_no_schema(shell, postgres_url):
    with started(shell, "--postgres", postgres_url) as (process, client):
        partition = f"{LABEL}-1"
        ops = {"tiny_digest__plan_delivery": {"config": LATE}}
        config = {"ops": {"tiny_digest__delivery_outcomes": {"ops": ops}}}
        run = client.launch("tiny_digest_weekly", partition, config=config)
        assert client.wait_for_run(run) == "SUCCESS"
        assert client.shown(["tiny_digest", "delivery_outcomes"], partition)["sent_now"] == 5
        assert len(processes_of(shell)) > 3
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
        assert process.wait(END) == 0
    assert processes_of(shell) == []
    ledgers, dagsters = tables(postgres_url, "public"), tables(postgres_url, SCHEMA)
    assert ledgers == {*metadata.tables, "ledger_version"}
    assert {"runs", "event_logs", "instigators"} <= dagsters
    assert not dagsters & set(metadata.tables)
    assert not list((shell.folder / "home").rglob("*.db-wal")), "something used SQLite"
    status = shell.run("status", "--digest", "tiny_digest", "--json", DIGEST_LEDGER_URL=postgres_url)
    assert status.code == 0, status.err


@pytest.mark.daemon
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_supervisor_or_a_closed_terminal_ends_every_process(shell, number):
    with started(shell) as (process, _):
        assert len(processes_of(shell)) > 3
        process.send_signal(number)
        assert process.wait(END) == 0
    assert processes_of(shell) == []


@pytest.mark.postgresql
def test_an_instance_or_a_ledger_that_is_named_already_is_never_taken_over(shell, postgres_url):
    theirs = shell.run("dev", "--postgres", postgres_url, DAGSTER_HOME=str(shell.folder))
    assert (theirs.code, "DAGSTER_HOME" in theirs.error) == (2, True)
    other = shell.run("dev", "--postgres", postgres_url, DIGEST_LEDGER_URL="sqlite:///other.db")
    assert (other.code, "DIGEST_LEDGER_URL" in other.error) == (2, True)
    assert tables(postgres_url, "public") == set()
    assert not (shell.folder / "home").exists()


def test_a_url_that_names_no_postgresql_database_is_refused_and_not_repeated(shell):
    for url in ("sqlite:///ledger.db", "postgresql://user:secret@host", "postgresql://user:secret@host:x/db"):
        said = shell.run("dev", "--postgres", url)
        assert said.code == 2
        assert "postgresql://user@host/database" in said.error
        assert "secret" not in said.error


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            ["CREATE TABLE event_logs (id int)", "CREATE TABLE run_tags (id int)"],
            "holds Dagster's own tables",
        ),
        ([f"CREATE SCHEMA {SCHEMA}", f"CREATE TABLE {SCHEMA}.manifest (id int)"], "holds a ledger"),
        (
            [f"CREATE SCHEMA {SCHEMA}", f"CREATE TABLE {SCHEMA}.orders (id int)"],
            "tables that are not Dagster's",
        ),
    ],
)
def test_a_schema_of_others_is_refused_before_anything_is_written(shell, postgres_url, statements, said):
    run_sql(postgres_url, *statements)
    before = tables(postgres_url, "public"), tables(postgres_url, SCHEMA)
    refused = shell.run("dev", "--postgres", postgres_url)
    assert refused.code == 2
    assert said in refused.error
    assert (tables(postgres_url, "public"), tables(postgres_url, SCHEMA)) == before
    assert not (shell.folder / "home").exists()


STUBBORN = """
import os, signal
from pathlib import Path
signal.signal(signal.SIGINT, lambda *_: Path("asked").touch())
signal.signal(signal.SIGTERM, lambda *_: Path("told").touch())
Path("begun").write_text(str(os.getpid()))
while True:
    signal.pause()
"""


def test_interrupted_at_every_step_of_its_end_it_leaves_no_process_behind(tmp_path):
    """Ctrl-C, once more while it waits for a child that will not end, and again while it makes the child end."""
    shell = Shell(tmp_path, {"DIGEST_HOME": str(tmp_path)})
    code = f"from digest_pipeline.cli import serve; raise SystemExit(serve._until_told({[sys.executable, '-c', STUBBORN]}))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=shell.environment)
    try:
        for file in ("begun", "asked", "told"):
            until((tmp_path / file).exists, bool, file)
            process.send_signal(signal.SIGINT)
        assert process.wait(END) == 0
        assert processes_of(shell) == []
    finally:
        process.kill()
        process.wait()
        with suppress(ProcessLookupError):
            os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)
