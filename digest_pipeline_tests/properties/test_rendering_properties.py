from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from digest_pipeline.addresses import clean_line
from digest_pipeline.content.mime import to_mime
from digest_pipeline.content.rendering import Renderer, RenderInputs
from digest_pipeline.content.templates import HTML, SUBJECT, TEXT, FrozenTemplate

_ANY = st.text(st.characters(exclude_categories=()), max_size=200)
_TEMPLATE = FrozenTemplate.from_parts(
    {
        SUBJECT: "For {{ customer.name }}: {{ items[0].title }}",
        TEXT: "{% for item in items %}{{ item.title }}\n{% endfor %}",
        HTML: "<style>li { margin: 0 }</style><ul>{% for item in items %}<li title='{{ item.title }}'>{{ item.title }}</li>{% endfor %}</ul>",
    }
)


def _renderer() -> Renderer:
    inputs = RenderInputs(
        template_hash=_TEMPLATE.hash,
        sender="News <news@example.com>",
        date="Mon, 24 Mar 1997 06:00:00 +0000",
        boundary_seed="seed",
        library_versions={},
    )
    return Renderer(_TEMPLATE, inputs, "News", "1997-W12", date(1997, 3, 17), date(1997, 3, 23))


_ONE, _OTHER = _renderer(), _renderer()


@given(name=_ANY, titles=st.lists(_ANY, min_size=1, max_size=3))
def test_the_same_rows_give_the_same_bytes_and_one_recipient_whatever_they_hold(name, titles):
    rows = [{"title": title} for title in titles]
    made = _ONE.render("d:1997-W12:c", {"name": name}, rows)
    assert made.to_bytes() == _OTHER.render("d:1997-W12:c", {"name": name}, rows).to_bytes()
    assert made.subject == clean_line(made.subject)
    data = to_mime(made, "ann@example.com")
    assert data == to_mime(made, "ann@example.com")
    head = data.split(b"\r\n\r\n")[0].split(b"\r\n")
    assert [line.split(b":")[0] for line in head if not line.startswith(b" ")] == [
        b"From", b"To", b"Subject", b"Date", b"Message-ID", b"Auto-Submitted", b"X-Operation-Key",
        b"MIME-Version", b"Content-Type",
    ]  # fmt: skip
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert b"\n" not in data.replace(b"\r\n", b"")
