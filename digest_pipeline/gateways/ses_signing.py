"""Signing requests to AWS with Signature Version 4, by botocore's signer and nothing else of botocore."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from digest_pipeline.errors import SpecError

SERVICE = "ses"


class Signer:
    """Signs for one credential and region. It is in no repr.

    Raises SpecError where botocore is not installed.
    """

    def __init__(self, access_key_id: str, secret_access_key: str, session_token: str, region: str) -> None:
        auth, self._requests = _botocore("auth"), _botocore("awsrequest")
        credentials = _botocore("credentials").Credentials(
            access_key_id, secret_access_key, session_token or None
        )
        self._auth = auth.SigV4Auth(credentials, SERVICE, region)
        # At DEBUG it logs what it signs, the session token among it.
        logging.getLogger("botocore.auth").setLevel(logging.INFO)

    def sign(self, method: str, url: str, body: bytes) -> dict[str, str]:
        """Return the headers of a JSON request: what is signed, and the signature, valid for minutes."""
        request = self._requests.AWSRequest(
            method=method, url=url, data=body, headers={"Content-Type": "application/json"}
        )
        self._auth.add_auth(request)
        return dict(request.headers.items())


def _botocore(module: str) -> Any:
    try:
        return import_module(f"botocore.{module}")
    except ImportError as error:
        raise SpecError(
            "the ses gateway needs botocore to sign its requests: pip install 'digest-pipeline[ses]'"
        ) from error
