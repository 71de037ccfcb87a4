"""The stand of the https_push gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from digest_pipeline_tests.gateways.push_provider import PushProcess

if TYPE_CHECKING:
    from digest_pipeline_tests.gateways.stands import EmulatedStand

SECRET = "whsec_cHVzaC1zZWNyZXQtZm9yLXRlc3RzLTAxMjM0NTY3+/8="
PREVIOUS = "whsec_YW4tb2xkZXItc2VjcmV0LWZvci10ZXN0cy0wMDAwMDA="
LOCAL = {"secret": SECRET, "allow_private": "127.0.0.0/8"}


@contextmanager
def push_stand(folder: Path) -> Iterator[EmulatedStand]:
    from digest_pipeline_tests.gateways.stands import EmulatedStand  # which lists this stand

    with PushProcess(folder / "push.db", SECRET) as process:
        yield EmulatedStand("https_push", process, LOCAL)
