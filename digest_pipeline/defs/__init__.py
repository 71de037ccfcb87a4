"""The Dagster rim: assets, checks, jobs, schedules. Each calls one function inward; Dagster stays here."""
