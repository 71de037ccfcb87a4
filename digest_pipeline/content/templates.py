"""Templates: frozen as text, compiled in a sandbox, explained when they fail.

A template is a folder of three Jinja files. Its text is stored with the manifest, so a digest that
was frozen last month renders as it did then, whatever the folder holds today.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from digest_pipeline.addresses import clean_text
from digest_pipeline.content.filters import FILTERS
from digest_pipeline.content.inlining import require_no_loading
from digest_pipeline.errors import TemplateError

SUBJECT = "subject.txt.j2"
TEXT = "body.txt.j2"
HTML = "body.html.j2"
PARTS = (SUBJECT, TEXT, HTML)

_UNDEFINED = re.compile(r"'([^']+)' is undefined\Z|has no (?:attribute|element) '([^']+)'\Z")


@dataclass(frozen=True, slots=True)
class FrozenTemplate:
    """The three parts of a template, as one JSON text that the ledger stores under its hash."""

    text: str

    @property
    def hash(self) -> str:
        """The SHA-256 of the text, in hex."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()

    @property
    def parts(self) -> dict[str, str]:
        """File name -> Jinja source."""
        return dict(json.loads(self.text))

    @classmethod
    def from_parts(cls, parts: Mapping[str, str]) -> FrozenTemplate:
        """Return the template made of three sources. Raises TemplateError if one is missing or wrong."""
        sources = {part: clean_text(parts[part]) for part in PARTS if part in parts}
        if set(sources) != set(PARTS) or len(parts) != len(PARTS):
            raise TemplateError(f"a template has exactly the parts {', '.join(PARTS)}")
        compile_parts(sources, {})
        require_no_loading(sources[HTML], HTML)
        return cls(json.dumps(sources, ensure_ascii=False, sort_keys=True, separators=(",", ":")))

    @classmethod
    def from_text(cls, text: str) -> FrozenTemplate:
        """Return the template that was stored as ``text``, hash unchanged. Raises TemplateError."""
        try:
            parts = json.loads(text)
        except ValueError as error:
            raise TemplateError("the stored template is not JSON") from error
        if not isinstance(parts, dict) or not all(isinstance(parts.get(part), str) for part in PARTS):
            raise TemplateError(f"the stored template lacks one of the parts {', '.join(PARTS)}")
        return cls(text)


def load_template(folder: Path) -> FrozenTemplate:
    """Return the template in a folder. Raises TemplateError naming the file that is missing or wrong.

    Line ends are normalised, so the same template has the same hash on every machine.
    """
    parts = {}
    for part in PARTS:
        path = folder / part
        try:
            parts[part] = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise TemplateError(f"{path}: no such file; a template is made of {', '.join(PARTS)}") from error
        except OSError as error:
            raise TemplateError(f"{path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise TemplateError(f"{path}: is not UTF-8 text") from error
    return FrozenTemplate.from_parts(parts)


def compile_parts(sources: Mapping[str, str], constants: Mapping[str, Any]) -> dict[str, Template]:
    """Compile the parts in one sandbox where ``constants`` are defined. Raises TemplateError.

    Only the HTML part escapes. What differs from one rendering to the next (random choices, filler
    text) is taken away, and there is no loader: a part can't include other files.
    """
    environment = ImmutableSandboxedEnvironment(
        autoescape=lambda name: name == HTML,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    del environment.filters["random"], environment.globals["lipsum"]
    environment.globals.update(constants)
    return {part: _compile(environment, part, source) for part, source in sources.items()}


def _compile(environment: ImmutableSandboxedEnvironment, part: str, source: str) -> Template:
    try:
        code = environment.compile(source, name=part, filename=part)
    except TemplateSyntaxError as error:
        raise TemplateError(f"template part {part}, line {error.lineno}: {error.message}") from error
    return Template.from_code(environment, code, environment.make_globals(None))


def explain(error: Exception, part: str, source: str) -> TemplateError:
    """Return what went wrong while a part rendered, in words that hold none of the data.

    A name is given only where it stands in the template's own source: with a computed key, Jinja's
    message quotes a value instead.
    """
    line = _line_of(error)
    where = f"template part {part}" + (f", line {line}" if line else "")
    if isinstance(error, UndefinedError):
        match = _UNDEFINED.search(error.message or "")
        name = (match[1] or match[2]) if match else ""
        if name and re.search(rf"\b{re.escape(name)}\b", source):
            return TemplateError(f"{where}: nothing supplies {name!r}")
        return TemplateError(f"{where}: a value is missing")
    return TemplateError(f"{where}: {type(error).__name__}")


def _line_of(error: Exception) -> int | None:
    line, frame = None, error.__traceback__
    while frame is not None:
        template = frame.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(frame.tb_lineno)
        frame = frame.tb_next
    return line
