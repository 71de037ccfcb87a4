"""Somebody at the Dagster UI: what they click, and what they read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Locator, Page, expect, sync_playwright

from digest_pipeline_tests.browser.conftest import Desk
from digest_pipeline_tests.harness.site import LOCATION

BROWSER_VARIABLE = "DIGEST_TEST_CHROMIUM"
SCREENSHOTS = Path(__file__).parents[2] / "test-artifacts"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_CLICK_MS = 120_000
RUN_MS = 600_000
"""How long a page may take on a busy machine, and how long a run may."""


def installed_browser() -> str | None:
    """Return the Chromium to use: the one that DIGEST_TEST_CHROMIUM names, or one on the PATH."""
    named = os.environ.get(BROWSER_VARIABLE)
    return named or next((found for name in _BROWSERS if (found := shutil.which(name))), None)


@dataclass
class Person:
    """A page of a browser that has never been here before."""

    page: Page
    desk: Desk

    def open(self, path: str, **query: str) -> None:
        self.page.goto(f"{self.desk.site.url}/{path}" + (f"?{urlencode(query)}" if query else ""))

    def open_graph(self) -> None:
        """Open the asset graph of the digest, and wait until it is drawn."""
        self.open(f"locations/{LOCATION}/asset-groups/{self.desk.rim.digest.name}")
        self.sees("delivery_outcomes")

    def open_asset(self, asset: str, view: str, **query: str) -> None:
        self.open(f"assets/{self.desk.rim.digest.name}/{asset}", view=view, **query)

    def open_launchpad(self, job: str) -> None:
        self.open(f"locations/{LOCATION}/jobs/{job}/playground")
        self.page.locator(".CodeMirror").first.wait_for()

    def clicks(self, name: str, role: str = "button", within: Locator | None = None) -> None:
        """Click the one enabled thing of that name; fails if anything covers it."""
        place = within or self.page
        found = place.get_by_role(role, name=name)  # type: ignore[arg-type]  # a literal of playwright's
        found.last.click()

    def follows_the_toast(self) -> None:
        """Follow the link of the note that says what was launched."""
        self.page.get_by_text("View", exact=True).last.click()

    def sees(self, text: str | re.Pattern[str], patience_ms: float = _CLICK_MS) -> None:
        """Wait until a text is on the page."""
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=patience_ms)

    def writes_config(self, text: str) -> None:
        """Replace what the Launchpad's editor holds."""
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)

    def chooses_partitions(self, keys: str, counted: str) -> None:
        """Type partitions into the Materialize dialog, which then says how many they are."""
        dialog = self.page.get_by_role("dialog")
        field = dialog.get_by_placeholder("ex:")
        field.fill(keys)
        field.press("Enter")
        dialog.get_by_text(counted).wait_for()

    def chooses_partition(self, key: str) -> None:
        """Choose the Launchpad's partition."""
        self.page.get_by_placeholder("Partition").fill(key)
        self.page.get_by_text(key, exact=True).last.click()

    def waits_for_run(self) -> str:
        """Wait until the run whose page opens has succeeded; return its id."""
        self.page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"), timeout=_CLICK_MS)
        run_id = self.page.url.rpartition("/")[2].partition("?")[0]
        expect(self.page.get_by_text("Success").first).to_be_visible(timeout=RUN_MS)
        return run_id

    def reads(self, label: str, value: str) -> None:
        """Wait until the metadata of a partition's page has that value."""
        row = self.page.get_by_role("row").filter(has=self.page.get_by_text(label, exact=True))
        expect(row.first.locator("td").nth(1)).to_have_text(value, timeout=_CLICK_MS)

    def keeps(self, name: str) -> None:
        """Keep what the page shows as a picture."""
        SCREENSHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


@contextmanager
def person_at(desk: Desk, browser: str) -> Iterator[Person]:
    """Open a browser on the UI, without any history."""
    with sync_playwright() as playwright:
        # No sandbox: it needs privileges that a container rarely has, and only our own pages are opened.
        arguments = ["--no-sandbox", "--no-proxy-server"]
        chromium = playwright.chromium.launch(executable_path=browser, args=arguments)
        page = chromium.new_page(viewport={"width": 1700, "height": 950})
        page.set_default_timeout(_CLICK_MS)
        yield Person(page, desk)
        chromium.close()
