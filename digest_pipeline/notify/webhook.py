"""The webhook: one POST of JSON, which may come more than once under the same ``Idempotency-Key``."""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta
from importlib.metadata import version

from digest_pipeline.gateways.http import Answer, HttpLimits, exchange, open_session
from digest_pipeline.ledger.incidents import Incident
from digest_pipeline.notify.channels import Told, Try
from digest_pipeline.notify.wording import as_json
from digest_pipeline.outcomes import NotSent
from digest_pipeline.spec import Digest

LIMITS = HttpLimits(total=timedelta(seconds=10), connect=timedelta(seconds=5), connections=1)
SIGNATURE = "X-Digest-Signature"


def signature(key: str, body: bytes) -> str:
    """Return the signature header's value: HMAC-SHA256 of the body, in hex."""
    return f"sha256={hmac.new(key.encode(), body, hashlib.sha256).hexdigest()}"


async def post(digest: Digest, incident: Incident, ui_url: str, limits: HttpLimits = LIMITS) -> Try:
    """Post an incident once. Only an answer of the 200s counts as told; nothing is followed."""
    url = digest.notify.webhook_url
    if url is None:
        return Try(Told.NEVER, "not configured")
    body = as_json(incident, ui_url)
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Idempotency-Key": incident.id,
        "User-Agent": f"digest-pipeline/{version('digest-pipeline')}",
    }
    if key := digest.notify.signing_key:
        headers[SIGNATURE] = signature(key, body)
    async with open_session(limits) as session:
        answer = await exchange(session, "POST", url, headers, body)
    if isinstance(answer, Answer):
        return Try(Told.YES if 200 <= answer.status < 300 else Told.NOT_YET, f"status {answer.status}")
    # The receiver knows the key: telling it again is safe, and not telling it is not.
    return Try(Told.NOT_YET if isinstance(answer, NotSent) else Told.PERHAPS, answer.detail)
