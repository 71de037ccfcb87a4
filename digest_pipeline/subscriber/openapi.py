"""The OpenAPI document of the routes that a server has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from digest_pipeline.gateways.https_push_answers import OUTCOMES
from digest_pipeline.keys import MAX_KEY_LENGTH

_TEXT = {"type": ["string", "null"]}


def describe(paths: Sequence[str]) -> dict[str, Any]:
    """Return the document of these paths (as Starlette writes them) and of those that every server has."""
    described = {path.replace(":path", ""): item for path, item in _PATHS.items() if path in paths}
    return {
        "openapi": "3.1.0",
        "info": {"title": "digest_pipeline subscriber", "version": "1"},
        "paths": described | _OWN,
        "components": {"securitySchemes": _SCHEMES},
    }


def _said(
    words: str, schema: dict[str, Any] | None = None, media: str = "application/json"
) -> dict[str, Any]:
    return {"description": words, "content": {media: {"schema": schema or {"type": "object"}}}}


def _plain(words: str) -> dict[str, Any]:
    return _said(words, {"type": "string"}, "text/plain")


def _in_path(name: str, *examples: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    found: dict[str, Any] = {"name": name, "in": "path", "required": True, "schema": schema}
    return found | ({"examples": {one: {"value": one} for one in examples}} if examples else {})


def _header(name: str, pattern: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": True,
        "schema": {"type": "string", "pattern": pattern},
    }


_PROVIDERS = ("resend", "postmark", "mailjet", "sendgrid", "mailgun", "brevo", "ses")

_SCHEMES = {
    "signed": {
        "type": "apiKey",
        "in": "header",
        "name": "webhook-signature",
        "description": "Standard Webhooks: v1,<base64 of HMAC-SHA256 over id.timestamp.body>; several by spaces",
    },
    "token": {"type": "http", "scheme": "bearer"},
}

_REPLY = {
    "type": "object",
    "required": ["outcome"],
    "properties": {
        "outcome": {"enum": sorted(OUTCOMES)},
        "message_id": _TEXT,
        "replayed": {"type": "boolean"},
        "class": {"enum": ["recipient", "content"]},
        "suppressed": {"type": "boolean"},
    },
}

_PUSH = {
    "type": "object",
    "additionalProperties": False,
    "required": ["key", "digest", "period", "tenant", "customer_id", "payload_hash"],
    "properties": {
        "key": {"type": "string", "pattern": "^[A-Za-z0-9._~%:/#-]+$", "maxLength": MAX_KEY_LENGTH},
        "digest": _TEXT,
        "period": _TEXT,
        "tenant": _TEXT,
        "customer_id": _TEXT,
        "payload_hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    },
}

_PUSH_ANSWERS = {
    "200": "complete: accepted, now or before",
    "400": "refused: no push",
    "401": "refused: not signed by a secret of ours, or not now",
    "404": "refused: the digest is not sent from here",
    "408": "refused: the body came too slowly",
    "409": "busy, unknown, or integrity: the same key again later; never with other bytes",
    "413": "refused: too large",
    "422": "rejected: never to be sent",
    "429": "throttled: no capacity, nothing was tried",
    "503": "retry: not sent, or halted: until a person acts",
}

_PATHS: dict[str, dict[str, Any]] = {
    "/push": {
        "post": {
            "summary": "A frozen message is due",
            "security": [{"signed": []}],
            "parameters": [
                _header("webhook-id", "^[A-Za-z0-9_-]{1,256}$"),
                _header("webhook-timestamp", "^[0-9]{1,10}$"),
            ],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _PUSH}}},
            "responses": {status: _said(words, _REPLY) for status, words in _PUSH_ANSWERS.items()},
        }
    },
    "/content/{key:path}": {
        "get": {
            "summary": "The frozen message of a key that is still to be settled",
            "security": [{"token": []}],
            "parameters": [_in_path("key")],
            "responses": {
                "200": _said("the message"),
                "401": _said("no token of ours"),
                "404": _said("nobody has sealed it"),
                "410": _said("erased, or settled"),
            },
        }
    },
    "/events/{provider}": {
        "post": {
            "summary": "What a mail provider reports",
            "parameters": [_in_path("provider", *_PROVIDERS)],
            "requestBody": {"content": {"application/json": {"schema": {}}}},
            "responses": {
                "200": _plain("committed, or nothing of ours"),
                "400": _plain("unreadable, or not of now"),
                "401": _plain("not authentic"),
                "403": _plain("of another account"),
                "404": _plain("no such provider here"),
                "413": _plain("too large"),
                "503": _plain("nothing was taken: again"),
            },
        }
    },
    "/unsubscribe/{token}": {
        method: {
            "summary": words,
            "parameters": [_in_path("token")],
            "responses": {
                "200": _said("a page", {"type": "string"}, "text/html"),
                "400": _plain("not a one-click request"),
                "404": _plain("an unknown link"),
                "413": _plain("too large"),
                "503": _plain("again later"),
            },
        }
        for method, words in (
            ("get", "A page with a button; changes nothing"),
            ("post", "One click (RFC 8058)"),
        )
    },
}

_OWN: dict[str, dict[str, Any]] = {
    "/healthz": {
        "get": {
            "summary": "Whether it serves and reaches its ledger",
            "responses": {"200": _said("it does"), "503": _said("no ledger")},
        }
    },
    "/openapi.json": {"get": {"summary": "This document", "responses": {"200": _said("it")}}},
}
