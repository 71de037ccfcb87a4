import os
from xml.etree import ElementTree

import pytest

from digest_pipeline.cli.junit import Finding, Result, require_writable, write_junit
from digest_pipeline.errors import InputError

FINDINGS = [
    Finding("gate", "sent", Result.PASSED, "holds"),
    Finding("digest/rows", "frozen", Result.FAILED, "1: changed. Next: digest trace a<b>&c"),
    Finding("digest/rows", "listed", Result.WARN, "2 in other periods"),
    Finding("run", "digest__check", Result.ERROR, "SourceError \x00\x1b\ufffe"),
]


@pytest.mark.parametrize(("strict", "failing"), [(False, 2), (True, 3)])
def test_a_warning_fails_only_a_strict_gate_and_is_shown_by_both(tmp_path, strict, failing):
    assert sum(one.fails(strict=strict) for one in FINDINGS) == failing
    file = tmp_path / "junit.xml"
    write_junit(file, "a gate", FINDINGS, 1.5, strict=strict)
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.attrib == {
        "name": "a gate",
        "tests": "4",
        "failures": str(failing - 1),
        "errors": "1",
        "skipped": "0",
        "time": "1.500",
    }
    children = {case.attrib["name"]: [child.tag for child in case] for case in suite}
    assert children == {
        "sent": [],
        "frozen": ["failure"],
        "listed": ["failure"] if strict else ["system-out"],
        "digest__check": ["error"],
    }


def test_every_text_is_readable_xml_whatever_it_holds(tmp_path):
    file = tmp_path / "junit.xml"
    write_junit(file, "a gate", FINDINGS, 0.0)
    texts = {
        case.attrib["name"]: "".join(case.itertext()) for case in ElementTree.parse(file).iter("testcase")
    }
    assert "Next: digest trace a<b>&c" in texts["frozen"]
    assert "SourceError \N{REPLACEMENT CHARACTER}" in texts["digest__check"]


def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--junit"):
        require_writable(tmp_path / "file" / "junit.xml")
    require_writable(tmp_path / "new" / "junit.xml")
    require_writable(None)


def test_a_file_that_is_there_and_may_not_be_written_is_told_before_the_work(tmp_path):
    file = tmp_path / "junit.xml"
    file.touch(mode=0o400)
    if os.access(file, os.W_OK):
        pytest.skip("this user may write whatever a file's mode says")
    with pytest.raises(InputError, match="--junit"):
        require_writable(file)
    file.chmod(0o600)
    require_writable(file)
