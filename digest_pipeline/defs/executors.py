"""Where the steps of a run execute: in the run's own process, or in worker processes on other machines."""

from __future__ import annotations

import dagster as dg
from sqlalchemy import make_url

from digest_pipeline.errors import InputError
from digest_pipeline.settings import Settings

SENDERS_QUEUE = "senders"
"""The Celery queue of the steps that send; every other step waits in dagster-celery's own, ``dagster``."""

SEND_TAGS = {"dagster-celery/queue": SENDERS_QUEUE}
"""On the op that sends: workers on as many machines as there are senders listen to this queue."""

BROKER_VARIABLE, BACKEND_VARIABLE = "DIGEST_CELERY_BROKER", "DIGEST_CELERY_BACKEND"


def executor_of(settings: Settings) -> dg.ExecutorDefinition:
    """Return the executor of every job that does not choose its own.

    Raises InputError when Celery is asked for and not installed, or the ledger is not shared. Runs started by the ``digest`` command
    never leave its process, whatever is chosen here.
    """
    if settings.executor == "in_process":
        # With the multiprocess executor, a killed run worker leaves its step sending while the retry
        # starts. The ledger makes that safe; this makes it rare.
        return dg.in_process_executor
    if make_url(settings.ledger_url).get_backend_name() == "sqlite":
        # Two ledgers know nothing of each other's sends.
        raise InputError(
            "DIGEST_EXECUTOR is celery and the ledger is SQLite, of which each machine would have its own: "
            "set DIGEST_LEDGER_URL to one PostgreSQL database on all of them"
        )
    try:
        from dagster_celery import celery_executor
    except ImportError:
        raise InputError(
            "DIGEST_EXECUTOR is celery, but dagster-celery is not installed: install digest-pipeline[celery]"
        ) from None
    # How long an unacknowledged task waits, and when a task is acknowledged, is the workers' to decide:
    # deploy/celery/celery.yaml.
    return celery_executor.configured(
        {"broker": {"env": BROKER_VARIABLE}, "backend": {"env": BACKEND_VARIABLE}}, name="celery"
    )
