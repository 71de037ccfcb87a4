"""What can be said of the files in deploy/ without a container engine or a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from digest_pipeline.defs.executors import BACKEND_VARIABLE, BROKER_VARIABLE
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Sending

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _pins(path: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==(\S+)", path.read_text(encoding="utf-8"), re.M)
    return {name.lower(): version for name, version in found}


def _known_variables() -> set[str]:
    """What the settings' table names, and what the packaged specification asks for."""
    import digest_pipeline.settings as module

    assert module.__doc__ is not None
    pages = [
        module.__doc__,
        (ROOT / "digest_pipeline/specs/customer_digest.yaml").read_text(encoding="utf-8"),
    ]
    named = {name for page in pages for name in re.findall(r"\bDIGEST_[A-Z_]+\b", page)}
    # Those that Dagster's own files and chart ask for.
    return named | {BROKER_VARIABLE, BACKEND_VARIABLE, "DAGSTER_HOME", "DAGSTER_PG_PASSWORD"}


@pytest.mark.parametrize("path", [DEPLOY / "Dockerfile", *KUBERNETES], ids=lambda path: path.name)
def test_what_was_never_run_says_so_in_its_first_line(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# NOT RUN HERE")


@pytest.mark.parametrize(
    "path",
    [DEPLOY / "Dockerfile", DEPLOY / "celery" / "celery.yaml", *KUBERNETES],
    ids=lambda path: path.name,
)
def test_every_variable_that_is_set_or_read_is_a_known_one(path: Path) -> None:
    named = set(re.findall(r"\b(?:DIGEST|DAGSTER)_[A-Z_]+\b", path.read_text(encoding="utf-8")))
    assert named <= _known_variables()


def test_the_settings_know_every_variable_of_the_chart_values(monkeypatch: pytest.MonkeyPatch) -> None:
    (deployment,) = _load(DEPLOY / "kubernetes" / "values.yaml")["dagster-user-deployments"]["deployments"]
    for name, value in deployment["env"].items():
        monkeypatch.setenv(name, value)
    found = Settings.from_environment()
    assert found.environment == "production"
    assert found.executor == "in_process"


def test_what_the_image_copies_exists() -> None:
    sources = [
        source for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.M) for source in line.split()[:-1]
    ]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, re.M)
    assert users == ["10001:10001"]
    for path in KUBERNETES:
        if path.name == "values.yaml":
            continue
        pod = _load(path)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001


def test_the_image_installs_the_versions_that_are_tested_here() -> None:
    image, tested = _pins(DEPLOY / "requirements.txt"), _pins(ROOT / "requirements-dev.txt")
    differing = {
        name: (image[name], tested[name])
        for name in image.keys() & tested.keys()
        if image[name] != tested[name]
    }
    assert differing == {}
    assert _pins(ROOT / "requirements.txt").keys() - image.keys() == set()
    assert image["dagster-celery"] == image["dagster-k8s"] == image["dagster-postgres"]


def test_the_chart_is_of_the_same_version_as_dagster() -> None:
    named = re.search(r"--version (\S+)", (DEPLOY / "kubernetes" / "values.yaml").read_text(encoding="utf-8"))
    assert named is not None
    assert named[1] == _pins(ROOT / "requirements.txt")["dagster"]


def test_every_image_of_the_cluster_is_this_build() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version is not None
    (deployment,) = _load(DEPLOY / "kubernetes" / "values.yaml")["dagster-user-deployments"]["deployments"]
    assert deployment["image"] | {"pullPolicy": ""} == {
        "repository": "digest-pipeline",
        "tag": version[1],
        "pullPolicy": "",
    }
    for path in KUBERNETES:
        for named in re.findall(r"image: (\S+)", path.read_text(encoding="utf-8")):
            assert named == f"digest-pipeline:{version[1]}"


def test_dagster_takes_the_workers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster_celery.cli import get_validated_config

    monkeypatch.setenv(BROKER_VARIABLE, "redis://broker/0")
    monkeypatch.setenv(BACKEND_VARIABLE, "redis://broker/1")
    found = get_validated_config(str(DEPLOY / "celery" / "celery.yaml"))
    assert (found["broker"], found["backend"]) == ("redis://broker/0", "redis://broker/1")
    assert found["config_source"]["task_acks_late"] is True


def test_a_task_is_not_delivered_again_while_a_step_of_ordinary_length_works() -> None:
    config = _load(DEPLOY / "celery" / "celery.yaml")["execution"]["config"]["config_source"]
    longest = Sending.model_fields["run_limit_seconds"].default
    assert config["broker_transport_options"]["visibility_timeout"] > longest
