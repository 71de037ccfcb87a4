"""``POST /push``: limit, signature, shape; then one durable decision (docs/push.md)."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from digest_pipeline.gateways.https_push_body import message_id_of
from digest_pipeline.gateways.signing import SignatureRefusedError, Signer
from digest_pipeline.subscriber import log, replies
from digest_pipeline.subscriber.bodies import TooLargeError, body_of
from digest_pipeline.subscriber.pushes import NoPushError, read_push
from digest_pipeline.subscriber.receiver import Receiver

MAX_BODY = 16 * 1024
"""Bytes. A push has about 400."""


def routes(receiver: Receiver, signer: Signer) -> list[Route]:
    """Return the route that takes pushes signed by one of the signer's secrets."""

    async def receive(request: Request) -> Response:
        try:
            body = await body_of(request, MAX_BODY)
        except TooLargeError:
            return _refused(413, "too large")
        except TimeoutError:
            return _refused(408, "too slow")
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            signed = signer.verify(headers, body, datetime.now(UTC))
        except SignatureRefusedError as error:
            return _refused(401, str(error))
        try:
            push = read_push(body)
        except NoPushError as error:
            return _refused(400, str(error))
        if signed.message_id != message_id_of(push.key):
            return _refused(400, "signed under another key's id")
        reply = await receiver.take(push)
        log.push_decided(push.key, reply.outcome, reply.status)
        return reply.response()

    return [Route("/push", receive, methods=["POST"])]


def _refused(status: int, reason: str) -> Response:
    log.push_refused(reason)
    return replies.refused(status).response()
