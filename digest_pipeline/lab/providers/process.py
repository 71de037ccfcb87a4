"""An emulated provider as a child process; killed, scripted and judged as the sandbox is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digest_pipeline.lab.providers.command import settings_of
from digest_pipeline.lab.providers.registry import EMULATIONS
from digest_pipeline.lab.sandbox.process import SandboxProcess


class ProviderProcess(SandboxProcess):
    """A context manager around one server that imitates ``provider``, with its documented switches.

    ``api_key`` is the credential it knows, ``user:password`` where the provider asks for two parts; it
    also opens the admin side.
    """

    def __init__(self, provider: str, store: Path, **settings: Any) -> None:
        super().__init__(store, settings_of(EMULATIONS[provider], **settings))
        self.provider = provider

    def _module(self) -> list[str]:
        return ["digest_pipeline.lab.providers", "--provider", self.provider]
