import unicodedata

from email_validator import EmailNotValidError, validate_email
from hypothesis import example, given
from hypothesis import strategies as st

from digest_pipeline import addresses
from digest_pipeline.addresses import (
    Address,
    address_hash,
    check_address,
    clean_line,
    clean_name,
    clean_text,
    normalise_address,
)

_ATOMS = st.text("abzABZ019.-_+'%!", min_size=1, max_size=12)
_HOSTS = st.text("abzABZ019.-", min_size=1, max_size=20)
_TLDS = st.sampled_from(
    ["com", "test", "example", "TEST", "invalid", "local", "arpa", "onion", "c0m", "c", "xn--p1ai"]
)
_NEAR_ADDRESSES = st.builds(lambda local, host, tld: f"{local}@{host}.{tld}", _ATOMS, _HOSTS, _TLDS)
_ANY = st.text(st.characters(exclude_categories=()))
_ODD_ADDRESSES = st.builds(lambda local, host: f"{local}@{host}.example", _ANY, _ANY)
_EVERYTHING = st.one_of(_NEAR_ADDRESSES, _ODD_ADDRESSES, _ANY)


@given(_NEAR_ADDRESSES)
@example("a@ab--cd.com")
@example("a@" + ".".join(["a" * 63] * 4) + ".com")
@example("a" * 243 + "@example.com")
def test_the_fast_path_accepts_only_what_email_validator_accepts(raw):
    matched = addresses._PLAIN(raw)
    found = check_address(raw)
    try:
        known = validate_email(raw.removesuffix("."), test_environment=True)
    except EmailNotValidError:
        assert not isinstance(found, Address)
        return
    assert isinstance(found, Address)
    assert found.ascii_domain == known.ascii_domain
    assert found.value.lower() == f"{known.local_part}@{known.ascii_domain}".lower()
    assert not matched or not known.smtputf8


@given(_EVERYTHING)
@example("a@b。example")
def test_checking_never_raises_and_what_it_accepts_is_a_fixed_point(raw):
    found = check_address(raw)
    if isinstance(found, Address):
        assert check_address(found.value) == found
        assert found.value.count("@") == 1
        assert found.value.isprintable()
        assert " " not in found.value
        assert len(found.value.encode()) <= 254
        assert found.value.isascii() is not found.needs_smtputf8


@given(_EVERYTHING)
def test_a_checked_address_is_the_same_mailbox_as_its_source(raw):
    found = check_address(raw)
    if isinstance(found, Address):
        assert normalise_address(found.value) == normalise_address(raw)


@given(_EVERYTHING)
@example("ᾳ@example.test")
@example("a@b . .")
@example("ü@b。")
def test_normalising_is_idempotent_and_never_raises(raw):
    once = normalise_address(raw)
    assert normalise_address(once) == once
    assert address_hash(once) == address_hash(raw)


@given(_ANY)
def test_clean_text_is_storable_and_a_fixed_point(raw):
    text = clean_text(raw)
    assert clean_text(text) == text
    assert text.encode("utf-8").decode("utf-8") == text
    assert unicodedata.is_normalized("NFC", text)
    assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])).map(lambda s: unicodedata.normalize("NFC", s)))
def test_clean_text_leaves_clean_text_alone(text):
    assert clean_text(text) == text


@given(_ANY)
@example("e\u202e\u0301")
@example("a\ud83d\u202e\ude00")
def test_a_name_is_one_short_line_and_a_fixed_point(raw):
    name = clean_name(raw)
    assert len(name) <= 100
    assert name.splitlines() in ([], [name])
    assert clean_name(name) == name
    assert clean_line(name) == name
