"""Something of the project's own beside the digest: what its customers bought, by week."""

import dagster as dg


@dg.asset(group_name="shop", description="Stands for the project's own assets.")
def weekly_sales() -> None:
    """Do nothing: the example is about what stands beside it."""
