"""Stands of the gateways that speak no HTTP: SMTP, and a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from pathlib import Path

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.lab.smtp.process import SmtpProcess
from digest_pipeline.lab.smtp.script import DROP, SILENCE, Scripted
from digest_pipeline_tests.gateways.situations import Situation
from digest_pipeline_tests.harness.command import free_port

USER, PASSWORD = "mailer", "S3cr3t@relay/%"

_ORDERS = {
    Situation.REFUSES_THE_RECIPIENT: Scripted("rcpt", "550 5.1.1 no such user: very.personal@example.test"),
    Situation.REFUSES_THE_ACCOUNT: Scripted("auth", "535 5.7.8 no"),
    Situation.THROTTLES: Scripted("dot", "454 4.7.0 too fast"),
    Situation.RESETS_AFTER_ACCEPTING: Scripted("dot", DROP, accepts=True),
    Situation.SILENT_AFTER_ACCEPTING: Scripted("dot", SILENCE, accepts=True),
    Situation.UNREADABLE_AFTER_ACCEPTING: Scripted("dot", "999 what?", accepts=True),
    Situation.RESETS_BEFORE_ACCEPTING: Scripted("dot", DROP),
}


def gateway_to(process: SmtpProcess, **settings: str) -> Gateway:
    """Return a gateway to a relay, over STARTTLS and logged in unless ``settings`` say otherwise."""
    known = {
        "host": "localhost",
        "port": str(process.port),
        "ca_file": str(process.ca_file),
        "username": USER,
        "password": PASSWORD,
        "time_out": "400ms",
        "local_hostname": "client.example",
    }
    return registry.create("smtp", known | settings)


class SmtpStand:
    secrets: tuple[str, ...] = (USER, PASSWORD)

    def __init__(self, process: SmtpProcess) -> None:
        self.process, self._reachable = process, True

    def reset(self) -> None:
        self._reachable = True
        self.process.control.reset()

    def arrange(self, situation: Situation, operation_key: str | None = None) -> None:
        self._reachable = situation is not Situation.IS_UNREACHABLE
        if situation is Situation.HAS_SUPPRESSED_THE_RECIPIENT:
            self.process.script(Scripted("rcpt", "550 5.1.1 no such user"))
        if order := _ORDERS.get(situation):
            self.process.script(Scripted(**order.to_json()))

    def gateway(self) -> Gateway:
        port = self.process.port if self._reachable else free_port()
        return gateway_to(self.process, port=str(port), time_out="700ms")

    def accepted(self, operation_key: str) -> int:
        return sum(1 for _ in self.process.oracle().acceptances(operation_key))

    def arrivals(self, operation_key: str) -> int:
        return self.process.oracle().attempts(operation_key)

    def with_other_than_one_recipient(self) -> int:
        return self.process.oracle().recipients_other_than_one()


@contextmanager
def smtp_stand(folder: Path) -> Iterator[SmtpStand]:
    with SmtpProcess(folder / "smtp.db", user=USER, password=PASSWORD) as process:
        yield SmtpStand(process)


class MaildirStand:
    secrets: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reset(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def arrange(self, situation: Situation, operation_key: str | None = None) -> None:
        if situation is Situation.REFUSES_THE_ACCOUNT:
            self.gateway()
            shutil.rmtree(self._folder / "tmp")

    def gateway(self) -> Gateway:
        if (self._folder / "new").exists():  # as it was arranged
            from digest_pipeline.gateways.maildir import MaildirGateway

            return MaildirGateway(self._folder)
        return registry.create("maildir", {"folder": str(self._folder)})

    def _keys(self) -> list[str]:
        files = (self._folder / "new").glob("*.eml")
        return [
            str(message_from_bytes(one.read_bytes(), policy=policy.SMTPUTF8)["X-Operation-Key"])
            for one in files
        ]

    def accepted(self, operation_key: str) -> int:
        return self._keys().count(operation_key)

    def arrivals(self, operation_key: str) -> int:
        return self.accepted(operation_key)

    def with_other_than_one_recipient(self) -> int:
        files = (self._folder / "new").glob("*.eml")
        parsed = [message_from_bytes(one.read_bytes(), policy=policy.SMTPUTF8) for one in files]
        return sum(
            len(message["To"].addresses) != 1 or bool(message["Cc"] or message["Bcc"]) for message in parsed
        )


@contextmanager
def maildir_stand(folder: Path) -> Iterator[MaildirStand]:
    yield MaildirStand(folder / "mail")
