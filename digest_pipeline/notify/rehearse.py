"""A test notification through every channel of a digest: the same way as a real one, and then closed."""

from __future__ import annotations

import secrets

from digest_pipeline.ledger import notices, reads
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.ledger.incidents import Identity
from digest_pipeline.notify.channels import Try, require_channels
from digest_pipeline.notify.incident import Facts, Finding, Kind, Severity
from digest_pipeline.notify.take_in import close_where, take_in
from digest_pipeline.notify.tell import tell
from digest_pipeline.settings import Settings
from digest_pipeline.spec import Digest


def rehearse(ledger: Ledger, settings: Settings, digest: Digest) -> dict[str, Try | None]:
    """Tell every channel that this is a test; return how each try ended. None: a sensor was quicker.

    Raises SpecError for a channel that is not configured right. Nothing is tried again afterwards.
    """
    require_channels(digest)
    what = Identity(Kind.TEST, digest.name, "", secrets.token_hex(4))
    facts = Facts("This is a test of the notifications: somebody ran `digest notify test`. Nothing is wrong.")
    with ledger.read() as conn:
        at = reads.now(conn)
    take_in(ledger, digest, Finding(what, Severity.ERROR, facts, at))
    with ledger.read() as conn:
        due = notices.due(conn, what)
    ended = {notice.channel: tell(ledger, settings, digest, notice) for notice in due}
    close_where(ledger, digest.name, "", lambda one, _: one.identity == what, at + 1)
    return ended
