"""The report of a period: figures from the ledger, written as CSV, as one HTML page and for Dagster."""
