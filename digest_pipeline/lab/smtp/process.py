"""The SMTP server as a child process; killed, scripted and judged as the sandbox is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.lab.smtp.script import Scripted


class SmtpProcess(SandboxProcess):
    """A context manager around one server. Without a user nobody has to log in.

    ``port``, ``tls_port`` and ``ca_file`` are valid once it was started; they change with a restart.
    """

    def __init__(
        self,
        store: Path,
        *,
        user: str = "",
        password: str = "",
        smtputf8: bool = True,
        starttls: bool = True,
        size: int = 10_000_000,
        **settings: Any,
    ) -> None:
        credential = f"{user}:{password}" if user else "nobody-logs-in"
        super().__init__(store, SandboxSettings(api_key=credential, **settings))
        self._options = [
            "--smtputf8" if smtputf8 else "--no-smtputf8",
            "--starttls" if starttls else "--no-starttls",
            f"--size={size}",
        ]

    @property
    def port(self) -> int:
        """Where it speaks SMTP, plain until STARTTLS."""
        return int(self.ready["smtp_port"])

    @property
    def tls_port(self) -> int:
        """Where it speaks TLS from the first byte."""
        return int(self.ready["smtps_port"])

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority that vouches for it."""
        return Path(self.ready["ca_file"])

    def script(self, *orders: Scripted) -> None:
        """Add orders behind those in force."""
        self.control.order("smtp/script", [order.to_json() for order in orders])

    def _module(self) -> list[str]:
        return ["digest_pipeline.lab.smtp", *self._options]
