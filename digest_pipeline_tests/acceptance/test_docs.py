"""The pages that are drawn from the code say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = _generator().pages()


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_what_make_docs_would_write(page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == GENERATED[page], "run: make docs"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_every_relative_link_of_a_page_leads_somewhere(page: str) -> None:
    file = ROOT / page
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not (file.parent / link).exists()] == []
