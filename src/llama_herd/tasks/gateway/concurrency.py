"""How many answers may be under way at a time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from llama_herd.tasks.gateway.problem import PASSES, Problem
from llama_herd.tasks.gateway.settings import GatewaySettings

#: What one slot holds.
SLOT_BYTES = 1 << 20


class ConcurrencyLimit:
    """Limits how many answers are under way at a time, in all and for each tenant."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._most = settings.gateway_max_streams
        self._most_of_one = settings.gateway_max_tenant_streams
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    @contextmanager
    def slots(self, tenant: str, num: int = 1, num_bytes: int = 0) -> Iterator[None]:
        """Take slots for answers within the block. Raises Problem if too few are free.

        num_bytes: of what is held until it is sent; each MiB counts as an answer, so that the sum is bounded.
        """
        num = max(num, min(1 + num_bytes // SLOT_BYTES, self._most_of_one))
        if self._taken[tenant] + num > self._most_of_one:
            message = f"{self._most_of_one} answers are under way for this tenant, the most that may be"
            raise Problem(429, "too_many_streams", message, headers=PASSES)
        if self.num_taken + num > self._most:
            raise Problem(503, "too_many_streams", "too many answers are under way here", headers=PASSES)
        self._taken[tenant] += num
        try:
            yield
        finally:
            self._taken[tenant] -= num
            if not self._taken[tenant]:
                del self._taken[tenant]
