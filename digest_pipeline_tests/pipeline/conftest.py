import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Dagster 1.13 still asks pydantic for the fields of a resource by their old name. Only Dagster's.
    config.addinivalue_line("filterwarnings", "ignore:The `__fields__` attribute:DeprecationWarning")
