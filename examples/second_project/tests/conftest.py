import pytest

pytest.register_assert_rewrite("digest_pipeline.lab.gateway_contract")
