"""Recovery as production does it: the next runs of the same period, with time passing in between."""

from __future__ import annotations

from digest_pipeline.lab.crash.period import LABEL
from digest_pipeline.lab.crash.record import is_finished
from digest_pipeline.lab.crash.stage import Case

MOST_RUNS = 8


def recover(case: Case) -> int:
    """Start runs, as a schedule does, until one leaves nothing to do; return how many that took.

    At most MOST_RUNS of them: what is left then is stuck, and the verdict says so.
    """
    for number in range(1, MOST_RUNS + 1):
        case.pass_time()
        case.run()
        with case.ledger() as ledger:
            if is_finished(ledger, case.digest, LABEL):
                return number
    return MOST_RUNS
