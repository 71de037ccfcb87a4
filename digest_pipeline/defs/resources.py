"""What assets and checks are given: the installation, opened once per run."""

# No `from __future__ import annotations` here: Dagster reads the types of decorated functions.

import dagster as dg
import structlog
from pydantic import PrivateAttr

from digest_pipeline.eligibility.source import Source
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.installation import make_gateway, open_ledger, open_source
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest
from digest_pipeline.telemetry import configure_logging


class Installation(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The ledger, the customer sources and the gateways, as the environment names them.

    It has no fields: an f-string of a resource would print them, secrets included.
    """

    _settings: Settings = PrivateAttr()
    _ledger: Ledger = PrivateAttr()

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Open the ledger; fails the run with a clear error when it is not at this build's schema."""
        if not structlog.is_configured():
            # A run worker of Dagster's: unconfigured, structlog prints a line per attempt to the step's log.
            configure_logging("INFO")
        self._settings = Settings.from_environment()
        self._ledger = open_ledger(self._settings)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the ledger."""
        self._ledger.close()

    @property
    def settings(self) -> Settings:
        """The environment's settings."""
        return self._settings

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        return self._ledger

    def source(self, digest: Digest) -> Source:
        """Return a digest's customer database."""
        return open_source(self._settings, digest)

    def gateway(self, digest: Digest) -> Gateway:
        """Return a digest's gateway, not entered yet."""
        return make_gateway(digest)
