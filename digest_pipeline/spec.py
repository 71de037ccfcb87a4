"""What a digest is: configuration, validated before anything is written.

A specification is one YAML file in a folder; each file is one digest with its own assets, job,
schedule and checks. ``extends: other.yaml`` starts from another file and replaces what it names.
Paths and ``*_file`` fields are relative to the file they stand in. Secrets never stand here: a
setting is either a plain value or ``{env: NAME, default: value}``.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from sqlalchemy import text

from digest_pipeline.addresses import Rejection, check_address
from digest_pipeline.errors import PeriodError, SpecError
from digest_pipeline.keys import DEFAULT_TENANT
from digest_pipeline.outcomes import Proof
from digest_pipeline.periods import Cadence, Period, last_ended, parse_period, periods_between, require_ended
from digest_pipeline.spec_suppression import Suppression

# No wider than what Dagster takes for an owner, so that a wrong one is told here, with its file and field.
_OWNER = re.compile(r"(team:\S+|[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,7})\Z").match


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


def _known_time_zone(name: str) -> str:
    if name not in available_timezones():
        near = difflib.get_close_matches(name, available_timezones(), n=1)
        raise ValueError(f"no such IANA time zone{f'; did you mean {near[0]}?' if near else ''}")
    return name


TimeZoneName = Annotated[str, AfterValidator(_known_time_zone)]


class EnvSetting(_Strict):
    """A value that comes from the environment; without ``default`` the variable must be set."""

    env: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    default: str | None = None

    def value(self) -> str:
        """Return the value. Raises SpecError naming the variable when there is none."""
        found = os.environ.get(self.env, self.default)
        if found is None:
            raise SpecError(f"the environment variable {self.env} is not set; this digest needs it")
        return found


class Query(_Strict):
    """SQL against the customer database, with bound ``:period_start`` and ``:period_end`` (dates)."""

    sql: str = Field(min_length=1, description="or sql_file: a path")

    @model_validator(mode="after")
    def _binds_the_period(self) -> Self:
        bound = set(text(self.sql).compile().params)
        missing = {"period_start", "period_end"} - bound
        if missing:
            # A query without its bounds mails all-time totals (PER-08).
            raise ValueError(f"the SQL must bind {' and '.join(f':{name}' for name in sorted(missing))}")
        unknown = bound - {"period_start", "period_end", "period_start_at", "period_end_at"}
        if unknown:
            raise ValueError(f"the SQL binds {', '.join(sorted(unknown))}, which nothing supplies")
        return self


class ContentSource(Query):
    """The rows each customer's digest is made of, and the template that turns them into a mail.

    The SQL returns ``customer_id`` and whatever the template reads; it is asked for one page of
    customers at a time, as a sub-query filtered by ``customer_id``.
    """

    template: Path = Field(description="folder of subject.txt.j2, body.txt.j2 and body.html.j2")
    dated_by: str = Field("", description="column that dates a row: outside the period, nothing is sealed")
    sender: str = Field(description="the From header: Name <address>")
    reply_to: str = Field("", description="the Reply-To header")
    list_id: str = Field("", description="the List-Id header")
    unsubscribe_url: str = Field(
        "",
        description="for List-Unsubscribe; may hold {token} (signed, for our own /unsubscribe/) or {operation_key}",
    )
    feedback_id: str = Field(
        "",
        pattern=r"^((?:[A-Za-z0-9._-]{0,64}:){0,3}[A-Za-z0-9._-]{5,15})?$",
        description="the Feedback-ID header: up to three identifiers and a sender's of 5 to 15 characters, a:b:c:sender",
    )


class GatewayChoice(_Strict):
    """Which gateway sends, and its settings, by name; secrets only through the environment."""

    kind: str = Field(description="one that `digest gateways` lists")
    settings: dict[str, EnvSetting | str] = Field(
        {}, description="name: value, or name: {env: NAME, default: value}"
    )

    def resolved(self) -> dict[str, str]:
        """Return the settings with their values. Raises SpecError for an unset variable."""
        return {
            name: setting if isinstance(setting, str) else setting.value()
            for name, setting in self.settings.items()
        }


class Rate(_Strict):
    """The send budget of the provider account: at most ``per_second`` x w + ``burst`` in w seconds."""

    per_second: float = Field(gt=0, le=100_000, description="below the provider's contract")
    burst: int = Field(ge=1, le=100_000, description="requests at once; at least 1 + a quarter of the rate")

    @model_validator(mode="after")
    def _burst_covers_the_slack(self) -> Self:
        # A permit may be used a quarter of a second late; arrivals can bunch up by that much.
        least = 1 + math.ceil(self.per_second / 4)
        if self.burst < least:
            raise ValueError(
                f"burst ({self.burst}) must be at least {least} for {self.per_second:g} a second: requests "
                "may start a quarter of a second late, and the promise to the provider covers that"
            )
        return self


class Sending(_Strict):
    """How this digest is sent. Durations in seconds."""

    enabled: bool = Field(True, description="false: everything but sending is done, and the rest is held")
    senders: int = Field(1, ge=1, le=64, description="ops that send; more than one needs other machines")
    lanes: int = Field(2, ge=1, le=32, description="claim-send-settle loops in a sender")
    concurrency: int = Field(50, ge=1, le=2000, description="provider calls under way in a sender")
    batch_size: int = Field(
        1, ge=1, le=1000, description="messages in one provider call, where the gateway can"
    )
    timeout_seconds: float = Field(30, gt=0, le=600, description="of one provider call")
    lease_seconds: float = Field(180, gt=0, le=7200, description="after it, a claim counts as unknown")
    in_run_wait_seconds: float = Field(60, ge=0, le=3600, description="longest wait inside a run")
    run_limit_seconds: float = Field(18_000, gt=0, description="lanes stop claiming before it")

    @model_validator(mode="after")
    def _lease_outlives_a_send(self) -> Self:
        if self.lease_seconds < 2 * self.timeout_seconds + 10:
            raise ValueError(
                f"lease_seconds ({self.lease_seconds:g}) must be at least twice timeout_seconds plus 10 "
                f"({2 * self.timeout_seconds + 10:g}), or a slow send outlives its lease"
            )
        return self


class Retry(_Strict):
    """The bounds of trying again: by count and by age, whichever comes first."""

    base_seconds: float = Field(30, gt=0, description="first wait; it doubles")
    cap_seconds: float = Field(1800, gt=0, description="longest wait")
    max_attempts: int = Field(8, ge=1, le=100)
    max_age_hours: float = Field(48, gt=0, description="counted from the first attempt")
    connect_failures_to_halt: int = Field(10, ge=1, description="in a row, in one sender")


class DeliveryWindow(_Strict):
    """When a digest may be sent, in hours from the end of its period."""

    opens_after_hours: float = Field(0, ge=0)
    closes_after_hours: float = Field(72, gt=0)

    @model_validator(mode="after")
    def _opens_before_it_closes(self) -> Self:
        if self.opens_after_hours >= self.closes_after_hours:
            raise ValueError("the window must open before it closes")
        return self


class LatePolicy(_Strict):
    """What happens to a period whose window has closed: held, unless ``allow`` with a reason.

    A permission given here is written to the ledger as an audited action like one given by hand.
    """

    allow: bool = Field(False, description="send periods whose window has closed")
    reason: str = Field("", description="for the audit trail; needed with allow")
    hours: float = Field(24, gt=0, description="how long the permission lasts")

    @model_validator(mode="after")
    def _names_a_reason(self) -> Self:
        if self.allow and not self.reason:
            raise ValueError("late.allow needs late.reason: it is written to the audit trail")
        return self


class Cleanup(_Strict):
    """When generated rows go: after this proof, and this long after the send.

    Without ``delay_hours`` they stay until the delivery window has closed.
    """

    proof: Literal[Proof.ACCEPTED, Proof.DELIVERED] = Field(
        Proof.ACCEPTED, description="delivered needs a gateway that can say so"
    )
    delay_hours: float | None = Field(None, ge=0, description="after the send; none: when the window closes")


class Retention(_Strict):
    """Days for which generated rows of unsent deliveries stay, by state, and unknowns stay open."""

    failed_days: float = Field(30, gt=0)
    dead_days: float = Field(30, gt=0)
    suppressed_days: float = Field(7, gt=0)
    written_off_days: float = Field(30, gt=0)
    unknown_days: float = Field(30, gt=0)
    pending_days: float = Field(30, gt=0, description="never tried, after the window: dead then")


class Objective(_Strict):
    """The promise to customers: the share with one digest inside the window."""

    coverage: float = Field(0.99, ge=0, le=1, description="of those who had something to be told")


class Replay(_Strict):
    """How far one person may go with dead letters."""

    approve_above: int = Field(100, ge=0, description="more keys than this need somebody else's approval")


class Notify(_Strict):
    """Who is told when a person is needed, once per incident; the log is told always.

    What a variable holds is checked when the file is read; a variable that is not set, when the Dagster
    code location is loaded. An empty value switches its channel off.
    """

    webhook: EnvSetting | None = Field(None, description="http(s) URL that is sent JSON with POST; a secret")
    webhook_secret: EnvSetting | None = Field(None, description="key of the signature header (HMAC-SHA256)")
    email: EnvSetting | None = Field(None, description="addresses, comma separated; mailed by the gateway")
    sender: str = Field("", description="the From header of these mails; content.sender without one")

    @model_validator(mode="after")
    def _can_be_told(self) -> Self:
        if self.webhook_secret is not None and self.webhook is None:
            raise ValueError("notify.webhook_secret signs what goes to notify.webhook: name that too")
        for field, setting, check in (
            ("webhook", self.webhook, _require_web_address),
            ("webhook_secret", self.webhook_secret, _require_key),
            ("email", self.email, _require_recipients),
        ):
            if setting is not None and (found := os.environ.get(setting.env, setting.default)):
                try:
                    check(found)
                except ValueError as error:
                    raise ValueError(f"notify.{field} ({setting.env}): {error}") from None
        return self

    @property
    def webhook_url(self) -> str | None:
        """Where the webhook is; None: none is wanted. Raises SpecError for an unset variable."""
        return _wanted("notify.webhook", self.webhook)

    @property
    def signing_key(self) -> str | None:
        """The key that signs webhooks; None: they are not signed. Raises SpecError for an unset variable."""
        return _wanted("notify.webhook_secret", self.webhook_secret)

    @property
    def recipients(self) -> tuple[str, ...]:
        """The addresses that are mailed, each once. Raises SpecError for an unset variable."""
        found = _wanted("notify.email", self.email)
        return _require_recipients(found) if found else ()


def _wanted(field: str, setting: EnvSetting | None) -> str | None:
    try:
        return (setting.value().strip() or None) if setting is not None else None
    except SpecError as error:
        raise SpecError(f"{field}: {error}") from None


# None of these may quote what it was given: a web address can hold a token, a list holds addresses.
def _require_web_address(text: str) -> None:
    try:
        parts = urlsplit(text.strip())
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:  # whose text quotes the address, which is a secret
        raise ValueError("must be a web address, http(s)://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.strip().isprintable():
        raise ValueError("must be a web address, http(s)://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must hold no user and password; sign with webhook_secret instead")


def _require_key(text: str) -> None:
    if len(text.strip()) < 16:
        raise ValueError("is too short to sign with: at least 16 characters")


def _require_recipients(text: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for number, one in enumerate(text.split(","), 1):
        address = check_address(one.strip())
        if isinstance(address, Rejection):
            raise ValueError(f"number {number} of the comma separated list is not an address")
        found[address.value] = None
    return tuple(found)


class Tenants(_Strict):
    """``single``: one tenant, ``default``. ``column``: the customer source names it per row."""

    mode: Literal["single", "column"] = "single"


class Digest(_Strict):
    """One configured mailing."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$", description="part of every key: never change it")
    title: str = Field("", description="what readers see; the name without one")
    owners: list[str] = Field([], description="of its assets in Dagster: a list of e-mails or team:name")
    cadence: Cadence = Field(description="weekly (ISO weeks) or daily")
    time_zone: TimeZoneName = Field(description="IANA name; periods run from midnight to midnight there")
    send_hour: int = Field(7, ge=0, le=23, description="when the schedule ticks, in that time zone")
    automatic: bool = Field(
        False, description="schedule and sensors start switched on; otherwise somebody does that in the UI"
    )
    catch_up_periods: int = Field(
        4, ge=0, le=60, description="latest ended periods in which a missed one is still started; 0: none is"
    )
    first_period: str = Field(description="2026-W42, or a date")
    last_period: str | None = Field(None, description="for a digest that ends")
    tenants: Tenants = Tenants()
    source: EnvSetting = Field(description="{env: NAME}: SQLAlchemy URL of the customer database")
    customers: Query
    content: ContentSource
    gateway: GatewayChoice
    rate: Rate
    sending: Sending = Sending()
    retry: Retry = Retry()
    delivery_window: DeliveryWindow = DeliveryWindow()
    late: LatePolicy = LatePolicy()
    cleanup: Cleanup = Cleanup()
    retention: Retention = Retention()
    suppression: Suppression = Suppression()
    objective: Objective = Objective()
    replay: Replay = Replay()
    notify: Notify = Notify()
    shared_address: Literal["separate", "merge"] = Field(
        "separate", description="merge: of customers with one address only the first is sent to"
    )

    @field_validator("owners")
    @classmethod
    def _are_owners(cls, owners: list[str]) -> list[str]:
        for number, owner in enumerate(owners, start=1):
            if not _OWNER(owner):  # by its number: no address in an error
                raise ValueError(
                    f"number {number} is neither an e-mail address nor a team, as in team:growth"
                )
        return owners

    @model_validator(mode="after")
    def _periods_exist(self) -> Self:
        ends = []
        for field in ("first_period", "last_period"):
            try:
                ends.append(
                    parse_period(getattr(self, field) or self.first_period, self.cadence, self.time_zone)
                )
            except PeriodError as error:
                raise ValueError(f"{field}: {error}") from error
        first, last = ends
        if last.first_day < first.first_day:
            raise ValueError(f"last_period {last.label} is before first_period {first.label}")
        return self

    def not_sending(self) -> Digest:
        """Return the same digest with sending disabled."""
        return self.model_copy(update={"sending": self.sending.model_copy(update={"enabled": False})})

    @property
    def zone(self) -> ZoneInfo:
        """The digest's time zone."""
        return ZoneInfo(self.time_zone)

    @property
    def first(self) -> Period:
        """The first period this digest is about."""
        return parse_period(self.first_period, self.cadence, self.time_zone)

    @property
    def last(self) -> Period | None:
        """The last period, or None for a digest without an end."""
        return parse_period(self.last_period, self.cadence, self.time_zone) if self.last_period else None

    def period(self, label: str, now: datetime | None = None) -> Period:
        """Return the period a person or a partition names.

        Raises PeriodError for a label that does not exist, lies outside this digest's periods, or
        names a period that has not ended at ``now`` (the present by default).
        """
        found = parse_period(label, self.cadence, self.time_zone)
        first, last = self.first, self.last
        if found.first_day < first.first_day or (last and found.first_day > last.first_day):
            upto = f"to {last.label}" if last else "onwards"
            raise PeriodError(
                f"period {found.label} is not one of {self.name}: its periods go from {first.label} {upto}"
            )
        require_ended(found, now or datetime.now(UTC))
        return found

    def ended_periods(self, now: datetime | None = None) -> list[Period]:
        """Return every period of this digest that is over, oldest first."""
        latest = last_ended(now or datetime.now(UTC), self.cadence, self.time_zone)
        last = self.last
        if last and last.first_day < latest.first_day:
            latest = last
        return list(periods_between(self.first, latest))

    def window(self, period: Period) -> tuple[datetime, datetime]:
        """Return when the delivery window of a period opens and closes (UTC, half-open)."""
        w = self.delivery_window
        return (
            period.end + timedelta(hours=w.opens_after_hours),
            period.end + timedelta(hours=w.closes_after_hours),
        )

    @property
    def single_tenant(self) -> str | None:
        """The one tenant, or None when the source names them."""
        return DEFAULT_TENANT if self.tenants.mode == "single" else None
