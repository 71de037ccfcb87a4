from hypothesis import example, given
from hypothesis import strategies as st

from digest_pipeline.keys import MAX_KEY_LENGTH, operation_key

_PART = st.one_of(
    st.text("ab:/%#.~2F3A", min_size=1, max_size=8),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    st.just("default"),
)
_PARTS = st.tuples(_PART, _PART, _PART, _PART)


@given(_PARTS, _PARTS)
@example(("d", "p", "default", "a/b"), ("d", "p", "a", "b"))
@example(("d", "p", "default", "a%2Fb"), ("d", "p", "default", "a/b"))
@example(("d:p", "q", "default", "c"), ("d", "p:q", "default", "c"))
@example(("d", "p", "default", "c" * 300), ("d", "p", "default", "c" * 301))
def test_two_deliveries_never_share_a_key(one, other):
    assert (operation_key(*one) == operation_key(*other)) == (one == other)


@given(_PARTS)
def test_a_key_is_short_printable_ascii_without_spaces(parts):
    key = operation_key(*parts)
    assert 0 < len(key) <= MAX_KEY_LENGTH
    assert key.isascii()
    assert key.isprintable()
    assert " " not in key
    assert key == operation_key(*parts)
