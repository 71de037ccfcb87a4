"""CSS for mail clients: the rules of a template's ``<style>`` element move to the elements they match.

Several mail clients drop ``<style>`` elements, so what a reader must see stands in ``style`` attributes.
Rules that only work in a style sheet (``@media`` for phones and for dark mode) stay in one. Nothing is
ever loaded: neither when a message is rendered nor, by its own style sheet, when it is read.
"""

from __future__ import annotations

import re

from css_inline import CSSInliner

from digest_pipeline.errors import TemplateError

_STYLE = re.compile(r"<style[\s>]", re.I).search
_COMMENTS = re.compile(r"<!--.*?-->|\{#.*?#\}|/\*.*?\*/", re.S)
_LOADED = re.compile(r"<link\b[^>]*\bstylesheet\b|@import\b", re.I).search

_INLINER = CSSInliner(
    keep_style_tags=False,
    keep_at_rules=True,
    # A template is a team's, its output also its customers': neither may make this machine fetch anything.
    load_remote_stylesheets=False,
)


def has_style(source: str) -> bool:
    """Whether a template's HTML part has a style element of its own; without one nothing is inlined."""
    return _STYLE(_without_comments(source)) is not None


def require_no_loading(source: str, part: str) -> None:
    """Raise TemplateError for an HTML part that refers to a style sheet elsewhere."""
    written = _without_comments(source)
    if found := _LOADED(written):
        line = written[: found.start()].count("\n") + 1
        raise TemplateError(
            f"template part {part}, line {line}: refers to a style sheet elsewhere, which mail clients do not "
            "load; write its rules into a <style> element"
        )


def inlined(html: str) -> str:
    """Return a whole HTML document with its rules inlined: the same text gives the same bytes.

    Raises ValueError for what is no HTML.
    """
    return _INLINER.inline(html)


def _without_comments(source: str) -> str:
    return _COMMENTS.sub(lambda comment: "\n" * comment[0].count("\n"), source)
