"""How many requests each key may send a second."""

from math import ceil
from time import monotonic

from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.settings import GatewaySettings

#: A key that was idle may do at once what it may do in so many seconds.
BURST_S = 10.0
#: A body counts as one request more for each of these.
BODY_BYTES = 65_536


class RateLimit:
    """A token bucket for each key. A request is let in unless its bucket is empty, and may leave a debt."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._per_s = settings.gateway_key_rate
        self._most = BURST_S * self._per_s
        #: By fingerprint: the requests that were left, and when, by time.monotonic.
        self._left: dict[str, tuple[float, float]] = {}

    def charge(self, fingerprint: str | None, cost: float = 1.0) -> None:
        """Take a request's cost. Raises Problem if none is left. fingerprint None: no key, and no limit."""
        if fingerprint is None or not self._per_s:
            return
        now_s = monotonic()
        left, seen_s = self._left.get(fingerprint, (self._most, now_s))
        left = min(self._most, left + self._per_s * (now_s - seen_s))
        if left <= 0:
            self._left[fingerprint] = left, now_s
            raise self._too_many(left)
        self._left[fingerprint] = left - cost, now_s

    def _too_many(self, left: float) -> Problem:
        message = f"this key may send {self._per_s:g} requests a second. Fix: HERD_GATEWAY_KEY_RATE"
        wait_s = max(1, ceil((1 - left) / self._per_s))
        return Problem(429, "rate_limit_exceeded", message, headers={"Retry-After": str(wait_s)})
