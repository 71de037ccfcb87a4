"""The provider's own rate limit: a token bucket."""

from __future__ import annotations


class Limiter:
    """Admits ``rate`` units a second on average and ``burst`` at once."""

    def __init__(self, rate: float | None, burst: float | None) -> None:
        self._rate = rate
        self._burst = max(1.0, burst if burst is not None else (rate or 1.0))
        self._tokens = self._burst
        self._at = 0.0

    def refused_for(self, units: int, now: float) -> float | None:
        """Take the units and return None, or return how many seconds to wait.

        A batch larger than the burst passes when the bucket is full and is then owed.
        """
        if self._rate is None:
            return None
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        needed = min(float(units), self._burst)
        if self._tokens < needed:
            return (needed - self._tokens) / self._rate
        self._tokens -= units
        return None
