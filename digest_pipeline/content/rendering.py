"""From rows to one message: a pure function of the template, the frozen inputs and the rows.

Everything that feeds a message but its rows is in RenderInputs, which are stored with the manifest:
rendering again, on another machine and another day, gives the same bytes.
"""

from __future__ import annotations

import hashlib
import platform
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from email.utils import format_datetime
from importlib.metadata import version
from typing import Any, Self

from digest_pipeline.addresses import clean_line, clean_name, clean_text
from digest_pipeline.content import inlining
from digest_pipeline.content.headers import HeaderPlan
from digest_pipeline.content.message import Message
from digest_pipeline.content.templates import HTML, SUBJECT, TEXT, FrozenTemplate, compile_parts, explain
from digest_pipeline.errors import LedgerIntegrityError, TemplateError


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderInputs:
    """What is frozen with a manifest and feeds each of its messages.

    ``sender`` and ``reply_to`` are mailboxes in words, ``Name <address>``. ``date`` is the Date header's
    value. ``unsubscribe_url`` may hold ``{operation_key}`` (percent-encoded) and ``{token}`` (what the
    renderer's ``sign`` returns for the key). ``library_versions`` explains a difference between
    machines; nothing decides by it.
    """

    template_hash: str
    sender: str
    date: str
    boundary_seed: str
    reply_to: str = ""
    list_id: str = ""
    unsubscribe_url: str = ""
    feedback_id: str = ""
    library_versions: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "library_versions": dict(self.library_versions)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the inputs whose JSON form is ``data``."""
        return cls(**data)


def header_date(instant: datetime) -> str:
    """Return an aware instant as the value of a Date header."""
    return format_datetime(instant)


def library_versions() -> dict[str, str]:
    """Return the versions that rendered bytes depend on."""
    return {
        "css-inline": version("css-inline"),
        "jinja2": version("jinja2"),
        "markupsafe": version("markupsafe"),
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
    }


class Renderer:
    """Renders the messages of one manifest. Holds no customer's data between calls.

    Templates see ``digest_title``, ``period_label``, ``period_first_day``, ``period_last_day``,
    ``operation_key``, ``unsubscribe_url`` (empty without one), ``customer`` and ``items``.
    Raises LedgerIntegrityError for a template that isn't the frozen one, TemplateError and SpecError for
    what a person has to correct.
    """

    def __init__(
        self,
        template: FrozenTemplate,
        inputs: RenderInputs,
        digest_title: str,
        period_label: str,
        period_first_day: date,
        period_last_day: date,
        *,
        sign: Callable[[str], str] | None = None,
    ) -> None:
        if template.hash != inputs.template_hash:
            raise LedgerIntegrityError("this template is not the one the manifest was frozen with")
        self._sources = template.parts
        self._parts = compile_parts(
            self._sources,
            {
                "digest_title": digest_title,
                "period_label": period_label,
                "period_first_day": period_first_day,
                "period_last_day": period_last_day,
            },
        )
        self._globals = self._parts[SUBJECT].globals
        self._headers = HeaderPlan(
            sender=inputs.sender,
            reply_to=inputs.reply_to,
            list_id=inputs.list_id,
            date=inputs.date,
            unsubscribe_url=inputs.unsubscribe_url,
            feedback_id=inputs.feedback_id,
            sign=sign,
        )
        self._boundary_seed = inputs.boundary_seed
        self._has_style = inlining.has_style(self._sources[HTML])

    def render(
        self, operation_key: str, customer: Mapping[str, Any], items: Sequence[Mapping[str, Any]]
    ) -> Message:
        """Return the message of one customer: the same arguments give the same bytes.

        ``customer`` may have a ``name``; the template sees it cleaned. Raises TemplateError, whose text
        names the part, the line and the missing variable, and none of the data.
        """
        to_name = clean_name(customer.get("name"))
        url = self._headers.unsubscribe_url(operation_key)
        variables = {
            **self._globals,
            "operation_key": operation_key,
            "unsubscribe_url": url,
            "customer": {**customer, "name": to_name},
            "items": items,
        }
        subject = clean_line(self._part(SUBJECT, variables))
        if not subject:
            raise TemplateError(f"template part {SUBJECT}: renders to an empty subject")
        return Message(
            sender=self._headers.sender,
            to_name=to_name,
            subject=subject,
            text=_body(self._part(TEXT, variables)),
            html=_body(self._html(variables)),
            headers=self._headers.headers(operation_key, url),
            boundary=_boundary(self._boundary_seed, operation_key),
        )

    def _html(self, variables: dict[str, Any]) -> str:
        html = self._part(HTML, variables)
        if not self._has_style:
            return html
        try:
            return inlining.inlined(clean_text(html))
        except ValueError as error:
            problem = TemplateError(
                f"template part {HTML}: its CSS cannot be inlined ({type(error).__name__})"
            )
        # Raised outside the handler: the cause may quote the message.
        raise problem

    def _part(self, part: str, variables: dict[str, Any]) -> str:
        template = self._parts[part]
        try:
            # What Template.render does, without copying the globals again for each part.
            return "".join(template.root_render_func(template.new_context(variables, shared=True)))
        except Exception as error:  # noqa: BLE001 - a template can raise anything its rows make it raise
            problem = explain(error, part, self._sources[part])
        # Raised outside the handler: the cause quotes customer data, and chained errors get printed.
        raise problem


def _body(text: str) -> str:
    return clean_text(text).rstrip("\n") + "\n"


def _boundary(seed: str, operation_key: str) -> str:
    # "=_" can't occur in quoted-printable text, so no body can hold the boundary.
    return "=_" + hashlib.sha256(f"{seed}\0{operation_key}".encode()).hexdigest()[:32]
