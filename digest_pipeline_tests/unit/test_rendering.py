import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from digest_pipeline.content import filters
from digest_pipeline.content.message import pack, unpack
from digest_pipeline.content.rendering import Renderer, RenderInputs, header_date, library_versions
from digest_pipeline.content.templates import HTML, PARTS, SUBJECT, TEXT, FrozenTemplate, load_template
from digest_pipeline.errors import LedgerIntegrityError, SpecError, TemplateError

KEY = "customer_digest:1997-W12:cdnow-00042"
GOLDEN = Path(__file__).with_name("golden") / "customer_digest.json"
ROW = {
    "customer_id": "cdnow-00042",
    "ordered_on": "1997-03-18",
    "cds": 2,
    "dollars": 23.5,
    "total_orders": 5,
    "total_cds": 11,
    "total_dollars": 1234.5,
}


def template(**parts: str) -> FrozenTemplate:
    sources = {SUBJECT: "Hello", TEXT: "text", HTML: "<p>html</p>"}
    return FrozenTemplate.from_parts(
        sources | {name.replace("__", "."): part for name, part in parts.items()}
    )


def renderer(frozen: FrozenTemplate, sign: Any = None, **inputs: str) -> Renderer:
    fields: dict[str, Any] = {
        "template_hash": frozen.hash,
        "sender": "Shop News <news@example.com>",
        "date": header_date(datetime(1997, 3, 24, 6, tzinfo=UTC)),
        "boundary_seed": "seed",
        "library_versions": library_versions(),
    }
    made = RenderInputs(**(fields | inputs))
    return Renderer(
        frozen, made, "Your week in music", "1997-W12", date(1997, 3, 17), date(1997, 3, 23), sign=sign
    )


def shipped() -> FrozenTemplate:
    with as_file(files("digest_pipeline") / "specs" / "customer_digest" / "template") as folder:
        return load_template(folder)


def render(
    body: str, customer: Mapping[str, Any] | None = None, rows: tuple[Mapping[str, Any], ...] = (ROW,)
) -> str:
    return renderer(template(body__txt__j2=body)).render(KEY, customer or {"name": "Ann"}, rows).text


def test_a_rendered_message_keeps_its_bytes():
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    made = renderer(shipped(), **golden["inputs"]).render(golden["key"], golden["customer"], golden["items"])
    assert made.text == golden["text"]
    assert hashlib.sha256(made.to_bytes()).hexdigest() == golden["sha256"]


def test_rows_of_either_database_in_any_order_give_the_same_bytes():
    monday, tuesday = ROW | {"ordered_on": "1997-03-17", "cds": 1}, ROW
    as_dates = [row | {"ordered_on": date.fromisoformat(str(row["ordered_on"]))} for row in (tuesday, monday)]
    made = renderer(shipped())
    assert made.render(KEY, {"name": "Ann"}, [monday, tuesday]) == made.render(KEY, {"name": "Ann"}, as_dates)


STYLED = """<!DOCTYPE html><html><head><style>
.a { color: red } p { margin: 0 } .a { color: blue }
@media (prefers-color-scheme: dark) { .a { color: white !important } }
</style></head><body><p class="a" style="padding: 1px">{{ customer.name }}</p></body></html>"""


def test_rules_of_a_style_element_move_to_what_they_match_and_media_queries_stay():
    html = renderer(template(body__html__j2=STYLED)).render(KEY, {"name": "Ann"}, [ROW]).html
    assert '<p class="a" style="margin: 0;color: blue;padding: 1px">Ann</p>' in html
    assert "@media (prefers-color-scheme: dark)" in html
    assert "red" not in html
    assert html.startswith("<!DOCTYPE html>")


def test_a_name_that_looks_like_a_style_changes_no_rule_and_stays_text():
    name = "</p><style>p { color: lime }</style>"
    html = renderer(template(body__html__j2=STYLED)).render(KEY, {"name": name}, [ROW]).html
    assert "&lt;style&gt;p { color: lime }&lt;/style&gt;" in html
    assert 'style="margin: 0;color: blue;padding: 1px"' in html


def test_half_a_character_in_a_styled_part_is_replaced_and_stops_nobody():
    """INP-09: what inlines takes only text that can be encoded."""
    body = STYLED.replace("customer.name", "customer.raw")
    html = renderer(template(body__html__j2=body)).render(KEY, {"raw": "Z\ud83d\x00!"}, [ROW]).html
    assert ">Z\ufffd!</p>" in html


def test_a_part_without_a_style_element_is_left_as_it_was_written():
    assert renderer(template(body__html__j2="<td>cell")).render(KEY, {}, [ROW]).html == "<td>cell\n"


@pytest.mark.parametrize(
    "reference",
    [
        '<link href="https://cdn.example/a.css" rel="stylesheet">',
        "<LINK REL=StyleSheet HREF=a.css>",
        "<style>@import url(https://cdn.example/a.css);</style>",
    ],
)
def test_a_style_sheet_elsewhere_is_refused_with_its_line(reference):
    with pytest.raises(TemplateError, match=r"body\.html\.j2, line 2: refers to a style sheet elsewhere"):
        template(body__html__j2=f"<p>{{# @import is refused #}}</p>\n{reference}")


def test_no_style_sheet_is_fetched_for_what_a_row_brings(tmp_path):
    """Neither over the network, where a refused connection would raise, nor from this machine's files."""
    (tmp_path / "a.css").write_text("p { color: lime }", encoding="utf-8")
    body = STYLED.replace("<style>", "{{ customer.raw|safe }}<style>")
    made = renderer(template(body__html__j2=body))
    for place in ("http://127.0.0.1:9/a.css", (tmp_path / "a.css").as_uri(), str(tmp_path / "a.css")):
        raw = f'<link rel="stylesheet" href="{place}">'
        html = made.render(KEY, {"name": "Ann", "raw": raw}, [ROW]).html
        assert "lime" not in html


def test_the_version_of_what_inlines_is_frozen_with_the_inputs():
    assert library_versions()["css-inline"].startswith("0.")


def test_the_shipped_mail_is_small_for_the_customer_who_bought_most():
    made = renderer(shipped(), unsubscribe_url="https://example.com/u/{operation_key}")
    assert len(made.render(KEY, {"name": "Ann"}, [ROW] * 23).html.encode()) < 8000


def test_a_customer_without_a_name_is_not_greeted_by_an_empty_one():
    made = renderer(shipped()).render(KEY, {"name": "x@evil.example"}, [ROW])
    assert made.to_name == ""
    assert "Hello" not in made.text + made.html
    assert "evil" not in made.text + made.html


def test_only_the_html_part_escapes():
    frozen = template(body__txt__j2="{{ customer.name }}", body__html__j2="{{ customer.name }}")
    made = renderer(frozen).render(KEY, {"name": "<b>&"}, [ROW])
    assert (made.text, made.html) == ("<b>&\n", "&lt;b&gt;&amp;\n")


def test_a_subject_is_one_line_whatever_a_name_holds():
    made = renderer(template(subject__txt__j2="Hi {{ customer.raw }}\n"))
    subject = made.render(KEY, {"name": "Ann", "raw": "Ann\r\nBcc: x@evil.test\x00\u2028!"}, [ROW]).subject
    assert subject == "Hi Ann Bcc: x@evil.test !"


def test_an_empty_subject_is_refused():
    with pytest.raises(TemplateError, match=r"subject\.txt\.j2"):
        renderer(template(subject__txt__j2="{{ ' ' }}")).render(KEY, {}, [ROW])


def test_bodies_lose_what_databases_and_mail_cannot_carry():
    assert render("a{{ customer.x }}b", {"x": "\x00\r\n\ud83dz"}) == "a\n\ufffdzb\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("one\n{{ nothing }}", "template part body.txt.j2, line 2: nothing supplies 'nothing'"),
        ("{{ customer.phone }}", "template part body.txt.j2, line 1: nothing supplies 'phone'"),
        (
            "{% for i in items %}\n\n{{ i['price'] }}{% endfor %}",
            "template part body.txt.j2, line 3: nothing supplies 'price'",
        ),
        ("{{ items[0][customer.name] }}", "template part body.txt.j2, line 1: a value is missing"),
        ("{{ items[0].customer_id|money }}", "template part body.txt.j2, line 1: InvalidOperation"),
        ("{{ customer.name|date }}", "template part body.txt.j2, line 1: ValueError"),
        ("{{ 1 // 0 }}", "template part body.txt.j2, line 1: ZeroDivisionError"),
        ("{{ customer.__class__.mro() }}", "template part body.txt.j2, line 1: SecurityError"),
        ("{% include 'x' %}", "template part body.txt.j2, line 1: TypeError"),
        ("{{ items.append(1) }}", "template part body.txt.j2, line 1: SecurityError"),
    ],
)
def test_a_failing_template_is_explained_without_customer_data(body, message):
    with pytest.raises(TemplateError) as caught:
        renderer(template(body__txt__j2=body)).render(KEY, {"name": "Secret Ann"}, [ROW])
    assert str(caught.value) == message
    # Chained exceptions are printed, and Jinja's own text quotes values.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("body", ["{{ lipsum() }}", "{{ [1, 2]|random }}"])
def test_nothing_random_is_within_a_templates_reach(body):
    with pytest.raises(TemplateError):
        render(body)


def test_a_template_with_a_syntax_error_does_not_load_and_names_the_line():
    with pytest.raises(TemplateError, match=r"body\.html\.j2, line 2"):
        template(body__html__j2="<p>\n{% if %}")


def test_a_template_survives_storage_with_its_hash(tmp_path):
    for part in PARTS:
        (tmp_path / part).write_bytes("a\r\nü{{ digest_title }}".encode())
    loaded = load_template(tmp_path)
    assert FrozenTemplate.from_text(loaded.text) == loaded
    assert loaded.parts[TEXT] == "a\nü{{ digest_title }}"
    assert loaded.hash == hashlib.sha256(loaded.text.encode()).hexdigest()


def test_a_folder_without_a_part_is_refused_by_file_name(tmp_path):
    with pytest.raises(TemplateError, match=r"subject\.txt\.j2: no such file"):
        load_template(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"subject.txt.j2": 1}'])
def test_stored_text_that_is_no_template_is_refused(text):
    with pytest.raises(TemplateError):
        FrozenTemplate.from_text(text)


def test_a_manifest_is_never_rendered_with_another_template():
    with pytest.raises(LedgerIntegrityError):
        renderer(template(), template_hash="0" * 64)


def test_inputs_survive_json():
    made = RenderInputs(
        template_hash="h", sender="s", date="d", boundary_seed="b", library_versions={"jinja2": "3"}
    )
    assert RenderInputs.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_headers_are_those_of_bulk_mail_and_derive_from_the_key():
    made = renderer(
        template(),
        reply_to='"Shop, Help" <help@example.com>',
        list_id="digest.example.com",
        feedback_id="weekly:digest::shopnews",
        unsubscribe_url="https://example.com/u?k={operation_key}&t={token}",
        sign=lambda key: f"signed {len(key)}",
    ).render(KEY, {"name": "Ann"}, [ROW])
    message_id = f"<{hashlib.sha256(KEY.encode()).hexdigest()[:40]}@example.com>"
    assert made.headers == (
        ("Date", "Mon, 24 Mar 1997 06:00:00 +0000"),
        ("Message-ID", message_id),
        ("Reply-To", '"Shop, Help" <help@example.com>'),
        ("List-Id", "<digest.example.com>"),
        ("Feedback-ID", "weekly:digest::shopnews"),
        ("Auto-Submitted", "auto-generated"),
        (
            "List-Unsubscribe",
            "<https://example.com/u?k=customer_digest%3A1997-W12%3Acdnow-00042&t=signed%2036>",
        ),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
        ("X-Operation-Key", KEY),
    )


def test_without_an_unsubscribe_address_there_is_no_such_header():
    names = [name for name, _ in renderer(template()).render(KEY, {}, [ROW]).headers]
    assert names == ["Date", "Message-ID", "Auto-Submitted", "X-Operation-Key"]


def test_two_deliveries_share_neither_message_id_nor_boundary():
    made = renderer(template())
    one, other = made.render("d:2026-W01:a", {}, [ROW]), made.render("d:2026-W01:b", {}, [ROW])
    assert one.headers[1] != other.headers[1]
    assert one.boundary != other.boundary


@pytest.mark.parametrize(
    "inputs",
    [
        {"sender": "Doe, Jo <jo@example.com>"},
        {"sender": "nobody"},
        {"sender": "Jo <jo@example.com>\r\nBcc: x@evil.test"},
        {"sender": "jörg@example.com"},
        {"reply_to": "a@example.com, b@example.com"},
        {"list_id": "two words"},
        {"list_id": "a\r\nBcc: x"},
        {"feedback_id": "a:b:c:d:shopnews"},
        {"feedback_id": "weekly:shop"},
        {"feedback_id": "weekly:sh\u00f6pnews"},
        {"feedback_id": "shopnews\r\nBcc: x"},
        {"unsubscribe_url": "mailto:x@example.com"},
        {"unsubscribe_url": "https://example.com/a b"},
        {"unsubscribe_url": "https://example.com/{customer}"},
        {"unsubscribe_url": "https://example.com/{token}"},
    ],
)
def test_what_cannot_stand_in_a_header_is_refused_before_anything_is_rendered(inputs):
    with pytest.raises(SpecError):
        renderer(template(), **inputs)


def test_a_message_survives_packing():
    made = renderer(shipped()).render(KEY, {"name": "Jörg 🎶"}, [ROW])
    assert unpack(*pack(made)) == made


def test_filters_format_without_locale():
    assert [filters.money(value) for value in (1234.5, "0.005", -3, 11.77, 0)] == [
        "$1,234.50",
        "$0.01",
        "-$3.00",
        "$11.77",
        "$0.00",
    ]
    assert filters.money(5, "€") == "€5.00"
    assert [filters.plural(count, "CD", "CDs") for count in (0, 1, 2, 1000)] == [
        "0 CDs",
        "1 CD",
        "2 CDs",
        "1,000 CDs",
    ]
    assert filters.date(datetime(1997, 3, 7, 23, tzinfo=UTC)) == filters.date("1997-03-07") == "7 March 1997"
    assert filters.weekday(date(1997, 3, 23)) == "Sunday 23 March"
    with pytest.raises(ValueError, match="whole"):
        filters.number(1.5)
