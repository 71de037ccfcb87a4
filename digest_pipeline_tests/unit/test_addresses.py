import json

import pytest

from digest_pipeline.addresses import (
    MAX_NAME_LENGTH,
    Address,
    AddressProblem,
    Rejection,
    address_hash,
    check_address,
    clean_line,
    clean_name,
    clean_text,
    normalise_address,
)


@pytest.mark.parametrize(
    ("raw", "sent"),
    [
        ("ann@example.com", "ann@example.com"),
        ("Ann.Smith+digest@Mail.EXAMPLE.Com", "Ann.Smith+digest@mail.example.com"),
        ("  ann@example.com ", "ann@example.com"),
        ("jo@example.test.", "jo@example.test"),
        ("user@example.invalidtld", "user@example.invalidtld"),
        ("o'neil!#$%&*+/=?^_`{|}~-@example.org", "o'neil!#$%&*+/=?^_`{|}~-@example.org"),
    ],
)
def test_an_ascii_address_is_sent_as_it_stands_but_for_the_domains_case_and_dot(raw, sent):
    """INP-06."""
    assert check_address(raw) == Address(sent, sent.rpartition("@")[2], False)


@pytest.mark.parametrize("raw", [None, "", "   "])
def test_a_missing_address_says_so(raw):
    assert check_address(raw) == Rejection(AddressProblem.MISSING)


@pytest.mark.parametrize(
    "raw",
    [
        "jo.@example.test",
        "jo..x@example.test",
        ".jo@example.test",
        "jo@example.test..",
        "jo@",
        "@example.com",
        "jo",
        "jo@@example.com",
        "jo x@example.com",
        "jo@exam ple.com",
        "jo@example.com\n",
        "jo@example.com\r\nBcc: x@evil.test",
        "jo\x00@example.com",
        "jo@exa\x00mple.com",
        "jo\x85@example.com",
        "jo\ud83d@example.com",
        "Jo <jo@example.com>",
        "jo@example.com, x@example.com",
        "jo@example.com;x@example.com",
        "jo@-example.com",
        "jo@example",
        "jo@localhost",
        "jo@192.0.2.1",
        "jo@xn--zzzzzz--.example",
        "j" * 250 + "@example.com",
        "jo@" + "a" * 64 + ".com",
    ],
)
def test_what_is_not_one_address_is_invalid(raw):
    """INP-06."""
    assert check_address(raw) == Rejection(AddressProblem.INVALID)


@pytest.mark.parametrize(
    "raw",
    [
        '"victim@evil.test x"@example.test',
        '"a> ORCPT=z"@example.test',
        '"a b"@example.test',
        "jo@[192.0.2.1]",
    ],
)
def test_quoted_local_parts_and_literals_are_unsupported_so_no_other_domain_is_ever_contacted(raw):
    """SEC-12."""
    assert check_address(raw) == Rejection(AddressProblem.UNSUPPORTED)


def test_a_local_part_outside_ascii_needs_smtputf8_and_a_domain_does_not():
    """INP-04."""
    assert check_address("jörg@example.test") == Address("jörg@example.test", "example.test", True)
    assert check_address("jo@bücher.example") == Address(
        "jo@xn--bcher-kva.example", "xn--bcher-kva.example", False
    )
    assert check_address("jo@XN--BCHER-KVA.example") == check_address("jo@bücher.example")


def test_a_decomposed_local_part_is_composed():
    assert check_address("jo\u0308rg@example.test") == check_address("jörg@example.test")


def test_one_normalisation_matches_case_trailing_dot_and_a_labels():
    """INP-15."""
    assert normalise_address("Ann@EXAMPLE.test") == normalise_address("ann@example.test")
    assert normalise_address("ann@example.test.") == normalise_address("ann@example.test")
    assert normalise_address("Ann@BÜCHER.example") == normalise_address("ann@xn--bcher-kva.example")
    assert normalise_address("JÖRG@example.test") == normalise_address("jo\u0308rg@example.test")


def test_normalisation_takes_what_is_no_address():
    for junk in (
        "",
        "@",
        "no at sign",
        '"a b"@example.test',
        "x@" + "ü" * 5000,
        "\ud83d@\ud83d",
        "a@..",
        "ü@。。",
    ):
        assert normalise_address(normalise_address(junk)) == normalise_address(junk)
        assert len(address_hash(junk)) == 64


def test_the_hash_of_an_address_is_pinned_because_ledgers_hold_it():
    assert address_hash("Ann@Example.com") == address_hash("ann@example.com.")
    assert (
        address_hash("ann@example.com") == "71d4f55f72fa128dfb468a1a3901507c804b74316488744d769d7f4b16696476"
    )


def test_a_rejection_reason_is_what_the_manifest_counts():
    assert [problem.value for problem in AddressProblem] == [
        "missing_address",
        "invalid_address",
        "unsupported_address",
    ]


def test_text_loses_control_characters_and_keeps_lines_and_tabs():
    assert clean_text("total\x005\tx\r\ny\rz\x07\x9f\x7f\u0085w") == "total5\tx\ny\nz\nw"


def test_half_a_surrogate_pair_becomes_the_replacement_character():
    name, body = json.loads('["Z\\ud83d", "\\udc00 and \\ud83d\\ude00"]')
    assert clean_text(name) == "Z\ufffd"
    assert clean_text(body) == "\ufffd and 😀"


def test_a_name_cannot_bring_a_header():
    assert clean_name("Ann\r\nBcc: x") == "Ann Bcc: x"
    assert clean_line("a\x0bb\x0cc\u0085d\u2028e\u2029f\tg") == "a b c d e f g"


@pytest.mark.parametrize("name", ["x@y.test", "Ann <x@y.test>", "Ann\r\nBcc: x@evil.test", "x\uff20y.test"])
def test_a_name_that_holds_an_address_is_dropped(name):
    assert clean_name(name) == ""


@pytest.mark.parametrize(
    "name", ["Doe, Jo", "Acme: Sales; EU", 'A "B" C', "Zoë", "山田 太郎", "Ann @ Work", "😀"]
)
def test_a_peculiar_name_stays(name):
    assert clean_name(name) == name


def test_no_name_is_an_empty_one():
    assert clean_name(None) == clean_name("") == clean_name(" \x00\n") == ""


def test_a_bidirectional_override_does_not_reach_a_header():
    assert clean_name("evil\u202emoc.knab\u2066") == "evilmoc.knab"


@pytest.mark.parametrize(
    ("unit", "limit"),
    [("x", 100), ("a\u0323\u0302b", 100), ("👩\u200d👩\u200d👧", 100), ("👍🏽", 100), ("❤\ufe0f", 100)],
)
def test_a_long_name_is_cut_between_graphemes(unit, limit):
    name = clean_name(unit * 120)
    whole = clean_text(unit)
    assert limit - len(whole) < len(name) <= limit
    assert name == (whole * 120)[: len(name)]
    assert all(not (whole * 120)[len(name)].startswith(mark) for mark in "\u200d\ufe0f🏽\u0302\u0323")


def test_a_name_of_nothing_but_marks_is_cut_all_the_same():
    assert len(clean_name("e" + "\u0301" * 300)) == MAX_NAME_LENGTH
