"""Every error this package raises on purpose.

    DigestError
    |- InputError            a person gave something that cannot be used (exit code 2)
    |  |- SpecError          a digest specification
    |  |- PeriodError        a period label
    |  |- TemplateError      a template that does not load or render
    |  `- UnknownKeyError    an operation key or customer that is not in the ledger
    |- SourceError           the customer or content source cannot be read
    |- LedgerError           the ledger cannot be used as it is
    |  |- SchemaVersionError       not migrated to this build's schema
    |  |- EnvironmentMismatchError a copy of another environment's ledger
    |  |- BuildSupersededError     a newer build owns the manifest now
    |  `- LedgerIntegrityError     what is stored contradicts what was frozen
    `- DeliveryHaltedError   the provider refuses the account; nothing more was sent

``str()`` of any of them holds no address, no content and no secret: these texts reach logs,
Dagster's event log and terminals.
"""

from __future__ import annotations


class DigestError(Exception):
    """Root of the tree; ``exit_code`` is what the command line ends with."""

    exit_code = 1


class InputError(DigestError):
    """What a person gave cannot be used; nothing was written."""

    exit_code = 2


class SpecError(InputError):
    """A digest specification is wrong; the text names the file, the field and the fix."""


class PeriodError(InputError):
    """A period label is not one, or is not one of this digest's periods."""


class TemplateError(InputError):
    """A template does not load, or does not render with the rows it was given."""


class UnknownKeyError(InputError):
    """The ledger holds no such operation key, customer or manifest."""


class SourceError(DigestError):
    """The customer or content source cannot be read, or answers without a required column."""


class LedgerError(DigestError):
    """The ledger cannot be used as it is."""


class SchemaVersionError(LedgerError):
    """The ledger's schema is not the one this build was made for."""


class EnvironmentMismatchError(LedgerError):
    """The ledger belongs to another environment, or is a copy: sending from it could repeat mail."""


class BuildSupersededError(LedgerError):
    """Another build of this manifest took over; this one must stop without writing."""


class LedgerIntegrityError(LedgerError):
    """Stored rows contradict what was frozen."""


class DeliveryHaltedError(DigestError):
    """The provider refuses the account (credentials, sender, quota); rows were left as they were."""
