"""Certificates for the servers of these tests."""

from __future__ import annotations

import pytest

from digest_pipeline.demo.push import Tls, make_tls


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A certificate for this machine, and the authority that vouches for it."""
    return make_tls(tmp_path_factory.mktemp("tls"))
