"""The pipeline's own claims about gateways, for ours."""

from collections.abc import Iterator

import pytest
from house import House

from digest_pipeline.lab.gateway_contract import GatewayContract


class TestHouseMail(GatewayContract):
    """Each claim, against a service that is new and empty."""

    @pytest.fixture
    def stand(self) -> Iterator[House]:
        with House() as house:
            yield house
