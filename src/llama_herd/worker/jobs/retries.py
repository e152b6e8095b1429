"""How often a job is tried again after an error that may pass, and how long it waits before."""

from random import uniform
from typing import NamedTuple, Self

from llama_herd.tasks.protocol.terms import MAX_BACKOFF_S, Terms

#: The wait before a first retry, if a job names none.
DEFAULT_BACKOFF_S = 1.0


class Retries(NamedTuple):
    """The retries of a job: how many in all, how many of them have been, and the wait before the first."""

    num: int = 0
    num_done: int = 0
    backoff_s: float = DEFAULT_BACKOFF_S

    @classmethod
    def of(cls, job: Terms, num_done: int) -> Self:
        backoff_s = DEFAULT_BACKOFF_S if job.retry_backoff_s is None else job.retry_backoff_s
        return cls(job.retries or 0, num_done, backoff_s)

    @property
    def num_left(self) -> int:
        return max(0, self.num - self.num_done)

    @property
    def longest_s(self) -> float:
        """The longest wait before the next retry."""
        return min(self.backoff_s * 2.0**self.num_done, MAX_BACKOFF_S)

    def draw_delay_ms(self) -> int:
        """A wait before the next retry: jobs that have failed together do not come back together."""
        return round(1000 * self.longest_s * uniform(0.5, 1.0))


NO_RETRIES = Retries()
