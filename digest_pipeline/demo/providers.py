"""Whom the demo can send to: real servers in processes of their own, each judged by its own store.

A further provider is a context manager that takes a ``Stage``, starts its servers in ``stage.home``, yields
a ``Provider`` and ends them; its name goes into ``PROVIDERS``, and ``digest demo --gateway NAME`` plays it.
It starts inside the demo's environment, in which DIGEST_LEDGER_URL is the demo's ledger, already migrated.

It keeps its store (and with that what was accepted) from one demo to the next in the same folder, so that a
second demo can prove that nothing is sent twice; host, user and credential stay the same, since the ledger
knows an account by them. Ports may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.lab.sandbox.faults import HARSH_FAULTS
from digest_pipeline.lab.sandbox.oracle import Oracle
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.lab.smtp.process import SmtpProcess
from digest_pipeline.lab.smtp.script import HARSH
from digest_pipeline.spec import EnvSetting, GatewayChoice


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a provider plays. ``harsh``: it fails in every way it knows, in an order drawn from ``seed``."""

    home: Path
    harsh: bool
    seed: int

    @property
    def profile(self) -> str:
        """The name of the fault plan."""
        return "harsh" if self.harsh else "none"


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider that runs, and how a digest reaches it.

    ``environment``: what the variables are set to that ``choice`` names. ``store``: where it records what
    it accepted, written by the laboratory's servers and read by their oracle. ``place``: where it is, for
    people. ``faults``: what a harsh plan has to have done in the end, as the oracle names it.
    """

    choice: GatewayChoice
    environment: Mapping[str, str] = field(repr=False)
    store: Path
    place: str
    faults: tuple[str, ...]

    def oracle(self) -> Oracle:
        """Return a reader of what was really accepted."""
        return Oracle(self.store)

    @property
    def settles_unknowns(self) -> bool:
        """Whether what is unknown settles itself: by a repeat under the same key, or by asking."""
        can = registry.KINDS[self.choice.kind].capabilities
        return can.look_up or can.idempotency is Idempotency.REPLAYS


@contextmanager
def _sandbox(stage: Stage) -> Iterator[Provider]:
    settings = SandboxSettings(profile=stage.profile, seed=stage.seed)
    choice = GatewayChoice(
        kind="sandbox",
        settings={
            "url": EnvSetting(env="DIGEST_SANDBOX_URL"),
            "api_key": EnvSetting(env="DIGEST_SANDBOX_API_KEY"),
        },
    )
    with SandboxProcess(stage.home / "sandbox.db", settings) as process:
        environment = {"DIGEST_SANDBOX_URL": process.url, "DIGEST_SANDBOX_API_KEY": settings.api_key}
        place = f"sandbox provider at {process.url}"
        yield Provider(choice, environment, process.store, place, tuple(str(one) for one in HARSH_FAULTS))


_USER, _PASSWORD = "demo", "only-for-the-demo"


@contextmanager
def _smtp(stage: Stage) -> Iterator[Provider]:
    server = SmtpProcess(
        stage.home / "smtp.db", user=_USER, password=_PASSWORD, profile=stage.profile, seed=stage.seed
    )
    with server as process:
        choice = GatewayChoice(
            kind="smtp",
            settings={
                "host": "localhost",
                "port": str(process.port),
                "security": "starttls",
                "ca_file": str(process.ca_file),
                "username": _USER,
                "password": EnvSetting(env="DIGEST_DEMO_SMTP_PASSWORD"),
                "local_hostname": "localhost",
                "put_off": "1s",  # nobody would watch the minutes of a real greylist
            },
        )
        environment = {"DIGEST_DEMO_SMTP_PASSWORD": _PASSWORD}
        place = f"SMTP server at localhost:{process.port}, STARTTLS and a login"
        yield Provider(choice, environment, process.store, place, tuple(order.name for order in HARSH))


@contextmanager
def _https_push(stage: Stage) -> Iterator[Provider]:
    from digest_pipeline.demo.push import https_push  # which stands on this module

    with https_push(stage) as provider:
        yield provider


PROVIDERS: dict[str, Callable[[Stage], AbstractContextManager[Provider]]] = {
    "sandbox": _sandbox,
    "smtp": _smtp,
    "https_push": _https_push,
}
"""Every provider of the demo by its gateway's name."""
