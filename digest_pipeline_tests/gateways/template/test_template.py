"""The contract that another team runs against its own gateway: it holds for a sound one, and catches others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "second_project"
SECONDS = 240

WRONG = {
    "a lost answer is taken for a failure": (
        "if isinstance(answer, Answer) else answer",
        "if isinstance(answer, Answer) else Refused(FailureClass.CONTENT, answer.detail)",
        "test_what_may_have_been_taken_is_ambiguous_and_was_offered_once",
    ),
    "a message is offered again": (
        "        return self._verdict(answer, envelope) if",
        '        answer = await self.call("POST", "/messages", serialise(body), self._headers())\n'
        "        return self._verdict(answer, envelope) if",
        "test_a_clear_yes_is_accepted_once",
    ),
    "any address is let through": (
        "        if refused := self.unsendable(envelope):\n            return refused\n",
        "",
        "test_what_is_not_one_plain_address_never_reaches_the_wire",
    ),
    "the provider's words are kept as they are": (
        "sanitise(f\"{answer.status} {code} {text_of(said, 'message')}\", self.hide(envelope))",
        "f\"{answer.status} {code} {text_of(said, 'message')}\"",
        "test_details_show_no_recipient_and_no_credential_in_any_encoding",
    ),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The second project, installed beside this package by its own pyproject."""
    folder = tmp_path_factory.mktemp("team")
    project, target = folder / "project", folder / "site"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(project)],
        check=True,
        timeout=SECONDS,
    )
    return project, target


def run(installed, *command):
    project, target = installed
    return subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run_the_contract(installed, *options):
    return run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "tests", *options)


def test_a_sound_gateway_of_another_project_passes(installed):
    done = run_the_contract(installed)
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 13


@pytest.mark.parametrize(("sound", "wrong", "caught_by"), WRONG.values(), ids=WRONG)
def test_an_unsound_one_is_caught(installed, sound, wrong, caught_by):
    module = installed[1] / "second_project" / "house_mail.py"
    text = module.read_text(encoding="utf-8")
    assert text.count(sound) == 1
    try:
        module.write_text(text.replace(sound, wrong), encoding="utf-8")
        done = run_the_contract(installed, "-k", caught_by)
    finally:
        module.write_text(text, encoding="utf-8")
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


def test_its_kind_is_listed_and_can_be_named_by_a_digest(installed):
    code = (
        "from digest_pipeline.gateways import registry;"
        "print([one['secrets'] for one in registry.describe() if one['kind'] == 'house_mail'])"
    )
    done = run(installed, "-c", code)
    assert done.stdout.strip() == "[['token']]", done.stderr


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("house_mail = second_project.nowhere:KIND", "the gateway house_mail (second_project.nowhere:KIND) cannot be loaded: ModuleNotFoundError"),
        ("house_mail = second_project.house_mail:CAPABILITIES", "the gateway house_mail (second_project.house_mail:CAPABILITIES) is no "),
        ("sandbox = second_project.house_mail:KIND", "the gateway sandbox (second_project.house_mail:KIND): there is one of that name already"),
    ],
)  # fmt: skip
def test_an_entry_point_that_cannot_be_used_is_named(installed, declared, said):
    (file,) = installed[1].glob("*.dist-info/entry_points.txt")
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text(f"[digest_pipeline.gateways]\n{declared}\n", encoding="utf-8")
        done = run(installed, "-c", "from digest_pipeline.gateways import registry")
    finally:
        file.write_text(text, encoding="utf-8")
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
