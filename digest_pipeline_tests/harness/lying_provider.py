"""A provider of one's own for `digest lab crash --provider`, with a record that is not true."""

from __future__ import annotations

from collections.abc import Iterable

from digest_pipeline.gateways import registry
from digest_pipeline.lab.crash.cells import Can
from digest_pipeline.lab.crash.provider import SandboxProvider

KIND = "lying"
registry.KINDS[KIND] = registry.KINDS["sandbox"]


class OwnProvider(SandboxProvider):
    """Honest, behind a gateway of a kind of its own, and able to replay keys only."""

    cans = frozenset({Can.REPLAYS})

    def gateway(self, can):
        _, settings = super().gateway(can)
        return KIND, settings


class LyingProvider(OwnProvider):
    """Says that it has accepted everything twice."""

    def acceptances(self) -> Iterable[tuple[str, str]]:
        found = list(super().acceptances())
        return [*found, *((key, f"{message}-again") for key, message in found)]
