"""Where this installation keeps things: the environment's side of the configuration.

| variable               | default                      | what it is                                   |
|------------------------|------------------------------|----------------------------------------------|
| DIGEST_HOME            | .digest                      | folder for the embedded databases and reports |
| DIGEST_LEDGER_URL      | sqlite in DIGEST_HOME        | SQLAlchemy URL of the ledger                 |
| DIGEST_SPECS           | the packaged demo's folder   | folder of digest specifications              |
| DIGEST_ENVIRONMENT     | local                        | name a ledger is bound to; a copy under another name never sends |
| DIGEST_SENDING         | on                           | off: nothing is sent, whatever a digest says |
| DIGEST_REPORTS         | reports/ in DIGEST_HOME      | where reports are written                    |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from digest_pipeline.errors import InputError
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import load_folder

PACKAGED_SPECS = Path(__file__).parent / "specs"
DEMO_SPECS = Path(__file__).parent / "demo" / "specs"


@dataclass(frozen=True)
class Settings:
    """What the environment says, read once at a process's start."""

    home: Path
    ledger_url: str
    specs: Path
    environment: str
    reports: Path
    sends: bool = True

    @classmethod
    def from_environment(cls) -> Settings:
        """Return the settings of this process."""
        home = Path(os.environ.get("DIGEST_HOME") or ".digest").absolute()
        return cls(
            home=home,
            ledger_url=os.environ.get("DIGEST_LEDGER_URL") or f"sqlite:///{home / 'ledger.db'}",
            specs=Path(os.environ.get("DIGEST_SPECS") or DEMO_SPECS),
            environment=os.environ.get("DIGEST_ENVIRONMENT") or "local",
            reports=Path(os.environ.get("DIGEST_REPORTS") or home / "reports").absolute(),
            sends=_is_on("DIGEST_SENDING"),
        )

    def digests(self) -> dict[str, Digest]:
        """Return every configured digest by name. Raises SpecError."""
        found = load_folder(self.specs)
        return found if self.sends else {name: digest.not_sending() for name, digest in found.items()}

    def digest(self, name: str) -> Digest:
        """Return one digest. Raises InputError naming those that exist."""
        digests = self.digests()
        if name not in digests:
            raise InputError(f"no digest called {name!r} in {self.specs}; there are: {', '.join(digests)}")
        return digests[name]


def _is_on(variable: str) -> bool:
    text = os.environ.get(variable) or "on"
    if text not in ("on", "off"):
        # Anything else might be somebody's way of writing "off".
        raise InputError(f"{variable} is on or off, not {text!r}")
    return text == "on"
