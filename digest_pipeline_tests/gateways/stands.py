"""For each kind of gateway, a provider to test it against, and how to put that in a situation.

A new adapter adds its stand here; the contract suite fails for a kind without one. What a stand
can't arrange it declares, with the reason.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Envelope, Gateway
from digest_pipeline.lab.providers.process import ProviderProcess
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline_tests.gateways.situations import Situation
from digest_pipeline_tests.gateways.stands_local import maildir_stand, smtp_stand
from digest_pipeline_tests.gateways.stands_push import push_stand
from digest_pipeline_tests.harness.sandbox import API_KEY, envelope, running_sandbox

RETRY_AFTER = 90
"""Seconds that a throttling provider asks for."""

SUPPRESSED = "reader@suppressed.example"
"""Has to be on the provider's own list in HAS_SUPPRESSED_THE_RECIPIENT."""

SPOILING = "reader@spoils.example"
"""Has to make the provider refuse a whole call in REFUSES_THE_WHOLE_CALL."""


class Stand(Protocol):
    """One provider. ``arrange`` holds for the next request; the counts are the provider's own."""

    secrets: tuple[str, ...]
    """The credential in its parts, which no output may show."""

    def reset(self) -> None:
        """Forget everything, and accept again."""

    def arrange(self, situation: Situation, operation_key: str | None = None) -> None:
        """Put the provider into a situation, for one message only where a key is given."""

    def gateway(self) -> Gateway:
        """Return a gateway to it, not entered yet, that gives up within a second."""

    def accepted(self, operation_key: str) -> int:
        """Return how many messages the provider accepted under a key."""

    def arrivals(self, operation_key: str) -> int:
        """Return how often a message with the key reached the provider."""

    def with_other_than_one_recipient(self) -> int:
        """Return how many accepted messages had more or fewer than one recipient."""


class HttpStand(Stand, Protocol):
    """A stand of an HTTP gateway, which can be led to another server."""

    def gateway_to(self, url: str) -> Gateway:
        """Return a gateway with the stand's credential to any URL."""


FAULTS = {
    Situation.REFUSES_THE_RECIPIENT: Fault.INVALID_RECIPIENT_422,
    Situation.REFUSES_THE_ACCOUNT: Fault.UNAUTHORIZED_401,
    Situation.THROTTLES: Fault.THROTTLED_429,
    Situation.THROTTLES_UNTIL_A_DATE: Fault.THROTTLED_429_DATE,
    Situation.RESETS_AFTER_ACCEPTING: Fault.RESET_AFTER_ACCEPT,
    Situation.SILENT_AFTER_ACCEPTING: Fault.TIMEOUT_AFTER_ACCEPT,
    Situation.UNREADABLE_AFTER_ACCEPTING: Fault.TRUNCATED_JSON_AFTER_ACCEPT,
    Situation.CUT_OFF_AFTER_ACCEPTING: Fault.CUT_BODY_AFTER_ACCEPT,
    Situation.A_PAGE_AFTER_ACCEPTING: Fault.HTML_200_AFTER_ACCEPT,
    Situation.BAD_GATEWAY_AFTER_ACCEPTING: Fault.BAD_GATEWAY_502_AFTER_ACCEPT,
    Situation.FAILS_AFTER_ACCEPTING: Fault.SERVER_ERROR_500_AFTER_ACCEPT,
    Situation.RESETS_BEFORE_ACCEPTING: Fault.RESET_BEFORE_ACCEPT,
    Situation.FAILS_TO_BE_ASKED: Fault.SERVER_ERROR_500_AFTER_ACCEPT,
    Situation.HIDES_THE_LAST_OF_A_BATCH: Fault.SHORT_BATCH_ANSWER,
    Situation.SHUFFLES_A_BATCH: Fault.SHUFFLED_BATCH_ANSWER,
}


class EmulatedStand:
    """A stand of any HTTP provider of ``digest_pipeline.lab``, which all share faults and store."""

    def __init__(self, kind: str, process: SandboxProcess, settings: Mapping[str, str]) -> None:
        self.kind, self.process, self._settings = kind, process, settings
        secrets = registry.KINDS[kind].secrets or settings.keys()
        self.secrets = tuple(value for name, value in settings.items() if name in secrets)
        self._reachable = True

    def reset(self) -> None:
        self._reachable = True
        self.process.control.reset()

    def arrange(self, situation: Situation, operation_key: str | None = None) -> None:
        self._reachable = situation is not Situation.IS_UNREACHABLE
        if fault := FAULTS.get(situation):
            route = "look_up" if situation is Situation.FAILS_TO_BE_ASKED else "send"
            which = {"next": 1} if operation_key is None else {"keys": [operation_key]}
            self.process.control.script(Rule(fault, **which, route=route, retry_after=RETRY_AFTER))

    def gateway(self) -> Gateway:
        return self.gateway_to(self.process.url if self._reachable else f"http://127.0.0.1:{closed_port()}")

    def gateway_to(self, url: str) -> Gateway:
        return registry.create(self.kind, {**self._settings, "url": url, "time_out": "700ms"})

    def accepted(self, operation_key: str) -> int:
        return sum(1 for _ in self.process.oracle().acceptances(operation_key))

    def arrivals(self, operation_key: str) -> int:
        return self.process.oracle().attempts(operation_key)

    def with_other_than_one_recipient(self) -> int:
        return self.process.oracle().recipients_other_than_one()


def closed_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class StandKind:
    """How to open a stand in a folder, and what it can't arrange, each with the reason."""

    open: Callable[[Path], AbstractContextManager[Stand]]
    cannot: Mapping[Situation, str] = field(default_factory=dict)
    http: bool = True
    """Whether what it opens is a HttpStand."""
    refuses: bool = True
    """Whether there is somebody who could refuse a message."""


def emulated(
    kind: str, settings: Mapping[str, str], credential: str, cannot: Mapping[Situation, str] | None = None
) -> StandKind:
    """Return the stand of a provider in ``lab.providers``; ``credential`` is what that one knows."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Stand]:
        with ProviderProcess(kind, folder / f"{kind}.db", api_key=credential) as process:
            yield EmulatedStand(kind, process, settings)

    return StandKind(opened, cannot or {})


@contextmanager
def sandbox_stand(folder: Path) -> Iterator[Stand]:
    with running_sandbox(folder) as process:
        yield EmulatedStand("sandbox", process, {"api_key": API_KEY})


_ONE_BY_ONE = "takes one message at a time"
_SAYS_NO_MORE = "an SMTP reply has no body and no proxy in between"
_NO_PROVIDER = "nobody is at the other end of a folder"

_TAKES_THE_SUPPRESSED = "takes a suppressed address and says so later, in an event"

_SMTP_CANNOT = {
    Situation.THROTTLES_UNTIL_A_DATE: "an SMTP reply names no time",
    Situation.CUT_OFF_AFTER_ACCEPTING: _SAYS_NO_MORE,
    Situation.A_PAGE_AFTER_ACCEPTING: _SAYS_NO_MORE,
    Situation.BAD_GATEWAY_AFTER_ACCEPTING: _SAYS_NO_MORE,
    Situation.FAILS_AFTER_ACCEPTING: "a 4xx or 5xx reply to the message says that it was not accepted",
    Situation.FAILS_TO_BE_ASKED: "a relay cannot be asked",
    Situation.HIDES_THE_LAST_OF_A_BATCH: _ONE_BY_ONE,
    Situation.SHUFFLES_A_BATCH: _ONE_BY_ONE,
    Situation.REFUSES_THE_WHOLE_CALL: _ONE_BY_ONE,
}
_MAILDIR_CAN = {Situation.ACCEPTS, Situation.REFUSES_THE_ACCOUNT}

STANDS: dict[str, StandKind] = {
    "smtp": StandKind(smtp_stand, _SMTP_CANNOT, http=False),
    "maildir": StandKind(
        maildir_stand,
        {one: _NO_PROVIDER for one in Situation if one not in _MAILDIR_CAN},
        http=False,
        refuses=False,
    ),
    "sandbox": StandKind(
        sandbox_stand,
        {
            Situation.HAS_SUPPRESSED_THE_RECIPIENT: "has no suppression list",
            Situation.REFUSES_THE_WHOLE_CALL: "answers for each message of a batch whatever the others are",
        },
    ),
    "resend": emulated(
        "resend",
        {"api_key": "re_Test_7Qp3kVx1"},
        "re_Test_7Qp3kVx1",
        {
            Situation.HAS_SUPPRESSED_THE_RECIPIENT: _TAKES_THE_SUPPRESSED,
            Situation.SHUFFLES_A_BATCH: "its batch answers name no message, so another order can't be seen",
        },
    ),
    "postmark": emulated("postmark", {"server_token": "pm-4f81-Token+/="}, "pm-4f81-Token+/="),
    "mailjet": emulated(
        "mailjet",
        {"api_key": "mj-public-9c2", "secret_key": "mj-Private/5d+e="},
        "mj-public-9c2:mj-Private/5d+e=",
        {Situation.HAS_SUPPRESSED_THE_RECIPIENT: _TAKES_THE_SUPPRESSED},
    ),
    "ses": emulated(
        "ses",
        {
            "region": "eu-central-1",
            "access_key_id": "AKIATEST7QP3KVX1",
            "secret_access_key": "ses/Secret+5d2e/Kx9=",
        },
        "AKIATEST7QP3KVX1:ses/Secret+5d2e/Kx9=",
        {Situation.HAS_SUPPRESSED_THE_RECIPIENT: _TAKES_THE_SUPPRESSED},
    ),
    "sendgrid": emulated(
        "sendgrid",
        {"api_key": "SG.Test_7Qp3kVx1.d-5e"},
        "SG.Test_7Qp3kVx1.d-5e",
        {Situation.HAS_SUPPRESSED_THE_RECIPIENT: _TAKES_THE_SUPPRESSED},
    ),
    "mailgun": emulated(
        "mailgun",
        {"api_key": "key-Test7qp3/kvx1+=", "domain": "mg.sender.test"},
        "key-Test7qp3/kvx1+=",
        {Situation.HAS_SUPPRESSED_THE_RECIPIENT: _TAKES_THE_SUPPRESSED},
    ),
    "brevo": emulated(
        "brevo",
        {"api_key": "xkeysib-Test7Qp3/kVx1="},
        "xkeysib-Test7Qp3/kVx1=",
        {Situation.HAS_SUPPRESSED_THE_RECIPIENT: _TAKES_THE_SUPPRESSED},
    ),
    "https_push": StandKind(
        push_stand, {Situation.HAS_SUPPRESSED_THE_RECIPIENT: "a push names no recipient to this emulation"}
    ),
}
"""Every kind of the registry by name. An owner of a kind adds its entry here, or in a module of its own."""


def digest(customer: str = "1842", recipient: str | None = None, text: str = "Hello") -> Envelope:
    """Return a small digest with every header that a real one has."""
    plain = envelope(customer, text=text, recipient=recipient)
    headers = (
        ("Date", "Mon, 19 Oct 2026 06:00:00 +0000"),
        ("Message-ID", f"<{customer[:40]}@sender.test>"),
        ("Reply-To", "Help Desk <help@sender.test>"),
        ("List-Id", "<weekly.sender.test>"),
        ("List-Unsubscribe", "<https://sender.test/u/1>"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
        ("X-Operation-Key", plain.operation_key),
    )
    return replace(plain, message=replace(plain.message, headers=headers, boundary="=_digest"))


def digests(count: int) -> list[Envelope]:
    """Return digests of that many customers."""
    return [digest(str(number)) for number in range(count)]
