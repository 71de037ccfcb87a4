"""The packaged mail as its readers see it: in a browser, at a desk and on a phone, by day and by night."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from digest_pipeline.content.rendering import Renderer, RenderInputs
from digest_pipeline.content.templates import load_template
from digest_pipeline.settings import PACKAGED_SPECS
from digest_pipeline_tests.browser.person import BROWSER_VARIABLE, SCREENSHOTS, installed_browser

pytestmark = [pytest.mark.slow]

DESK, PHONE = 1000, 375
KEY = "customer_digest:1997-W12:cdnow-00042"
NAMES = {
    "plain": "Ann",
    "long": "Wolfeschlegelsteinhausenbergerdorff" * 2 + "Maximilian",
    "emoji": 'Zoë 🎶 Müller, "Jo"',
    "right to left": "محمد بن سلمان",
}


def mail(name: str = "Ann", items: int = 3) -> str:
    template = load_template(PACKAGED_SPECS / "customer_digest" / "template")
    inputs = RenderInputs(
        template_hash=template.hash,
        sender="Record Shop <digest@shop.example>",
        date="Mon, 24 Mar 1997 06:00:00 +0000",
        boundary_seed="seed",
        unsubscribe_url="https://shop.example/unsubscribe/{operation_key}",
        library_versions={},
    )
    rows: list[dict[str, Any]] = [
        {
            "ordered_on": f"1997-03-{17 + number % 7}",
            "cds": number + 1,
            "dollars": 23.5,
            "total_orders": 5,
            "total_cds": 1_100,
            "total_dollars": 123_456.5,
        }
        for number in range(items)
    ]
    title = "Your week at the record shop"
    renderer = Renderer(template, inputs, title, "1997-W12", date(1997, 3, 17), date(1997, 3, 23))
    return renderer.render(KEY, {"name": name}, rows).html


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = installed_browser()
    if path is None:
        pytest.skip(f"no Chromium on this machine: install one, or name it with {BROWSER_VARIABLE}")
    with sync_playwright() as playwright:
        # No sandbox: it needs privileges that a container rarely has, and only our own pages are opened.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--no-proxy-server"])
        yield browser
        browser.close()


def shown(browser: Browser, html: str, width: int, scheme: str = "light") -> Page:
    """Open a mail in a page that runs no scripts of it and may load nothing."""
    asked: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)  # type: ignore[arg-type]  # a literal of playwright's

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    context.route("**/*", refuse)
    page = context.new_page()
    page.set_content(html, wait_until="load")
    assert asked == [], "a mail loads nothing"
    return page


def keep(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"mail-{name}.png", full_page=True)


def luminance(page: Page, selector: str, what: str) -> float:
    """Return the relative luminance of a computed colour, from 0 to 1, as WCAG 2 defines it."""
    colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}")
    parts = [int(part) / 255 for part in colour[4:-1].split(",")[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


@pytest.mark.parametrize("width", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("name", NAMES)
def test_whoever_reads_it_nothing_is_cut_off_and_nothing_scrolls_sideways(chromium, name, width):
    page = shown(chromium, mail(NAMES[name]), width)
    keep(page, f"{name.replace(' ', '-')}-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    card = page.locator(".card").bounding_box()
    greeting = page.get_by_text(NAMES[name]).bounding_box()
    assert card is not None
    assert greeting is not None
    assert card["width"] <= 560
    assert card["x"] <= greeting["x"]
    assert greeting["x"] + greeting["width"] <= card["x"] + card["width"]
    assert page.get_by_role("link", name="Unsubscribe").is_visible()


@pytest.mark.parametrize("items", [1, 40])
def test_columns_stay_aligned_however_many_rows_there_are(chromium, items):
    page = shown(chromium, mail(items=items), PHONE)
    rows = page.locator("tr.row")
    assert rows.count() == items
    ends = set()
    for number in (0, items - 1):
        box = rows.nth(number).locator("td").last.bounding_box()
        assert box is not None
        ends.add(round(box["x"] + box["width"]))
    assert len(ends) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_by_day_and_by_night(chromium, scheme):
    """WCAG 2, level AA, asks for a contrast of 4.5."""
    page = shown(chromium, mail(), PHONE, scheme)
    keep(page, f"{scheme}-{PHONE}")
    card, page_ground = (
        luminance(page, ".card", "backgroundColor"),
        luminance(page, ".page", "backgroundColor"),
    )
    assert (card < 0.5) is (scheme == "dark")
    for selector, ground in (
        (".card", card),
        (".quiet", card),
        (".foot", page_ground),
        (".link", page_ground),
    ):
        text = luminance(page, selector, "color")
        lighter, darker = max(text, ground), min(text, ground)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, selector


def test_without_its_style_element_it_still_looks_like_itself(chromium):
    """Several mail clients drop the element: what it looks like by day stands in the elements' own styles."""
    html = mail()
    start, end = html.index("<style>"), html.index("</style>")
    page = shown(chromium, html[:start] + html[end + len("</style>") :], DESK)
    assert page.locator(".card").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("h1").evaluate("e => getComputedStyle(e).fontSize") == "24px"
    assert page.locator("tr.row").first.evaluate("e => getComputedStyle(e).borderBottomWidth") == "1px"
