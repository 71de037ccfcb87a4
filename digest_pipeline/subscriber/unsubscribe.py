"""``/unsubscribe/<token>``: one click, or a page with a button (RFC 8058).

``routes(ledger, settings)`` returns the routes to mount; none where no keys are configured. A POST with
``List-Unsubscribe=One-Click`` puts the recipient of that message on its tenant's suppression list, durably
before it is answered, however often it comes; it needs no cookie, login or redirect. A GET changes nothing:
mail scanners follow every link. No address is shown, and nothing of a wrong token.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from digest_pipeline.content.unsubscribe_tokens import UnsubscribeTokens
from digest_pipeline.ledger import suppressions
from digest_pipeline.ledger.engine import Ledger
from digest_pipeline.settings import Settings
from digest_pipeline.subscriber.bodies import TooLargeError, body_of

MAX_BODY = 16 * 1024
PATIENCE = 5.0
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Unsubscribe</title>
<style>
body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 32rem; margin: 15vh auto; padding: 0 1.5rem; }}
button {{ font: inherit; padding: .6rem 1.4rem; }}
:root {{ color-scheme: light dark; }}
</style>
</head>
<body>
<main>{content}</main>
</body>
</html>
"""
_ASK = """<h1>Unsubscribe</h1>
<p>You will get no more of these mails.</p>
<form method="post"><button name="List-Unsubscribe" value="One-Click">Unsubscribe</button></form>"""
_DONE = """<h1>You are unsubscribed</h1>
<p>You will get no more of these mails. One that is already on its way may still arrive.</p>"""


def routes(ledger: Ledger, settings: Settings) -> list[Route]:
    """Return the route for the links that these keys have signed."""
    if not settings.unsubscribe_keys:
        return []
    tokens = UnsubscribeTokens(settings.unsubscribe_keys)

    async def answer(request: Request) -> Response:
        key = tokens.read(request.path_params["token"])
        if key is None:
            return _plain(404, "this link is not known")
        if request.method != "POST":
            return HTMLResponse(_PAGE.format(content=_ASK), headers=HEADERS)
        try:
            if not _is_one_click(await body_of(request, MAX_BODY)):
                return _plain(400, "List-Unsubscribe=One-Click is missing")
            work = partial(suppressions.opt_out, operation_key=key, source="unsubscribe")
            known = await run_in_threadpool(ledger.transact, work, patience=PATIENCE)
        except TooLargeError:
            return _plain(413, "too large")
        except TimeoutError:
            return _plain(408, "too slow")
        except DBAPIError:
            return _plain(503, "try again later")
        if known is None:
            return _plain(404, "this link is not known")
        return HTMLResponse(_PAGE.format(content=_DONE), headers=HEADERS)

    return [Route("/unsubscribe/{token}", answer, methods=["GET", "POST"])]


def _is_one_click(body: bytes) -> bool:
    """Whether a form says so: url-encoded, or multipart, which RFC 8058 allows too."""
    if b"List-Unsubscribe=One-Click" in body:
        return True
    name, _, rest = body.partition(b'name="List-Unsubscribe"')
    return bool(name) and rest.lstrip().startswith(b"One-Click")


def _plain(status: int, words: str) -> Response:
    return PlainTextResponse(words + "\n", status_code=status, headers=HEADERS)
