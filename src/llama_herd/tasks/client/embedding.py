"""Vectors and ranks of any number of texts: as many jobs as that takes, and what they come to."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

from llama_herd.tasks.client.lots import SubmitOutcome
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import together
from llama_herd.tasks.protocol.result import Result

#: How long the jobs of a call that waits are kept, should it not come to purge them.
KEEP_S = 3600


@dataclass(frozen=True)
class Embeddings:
    """The vectors of texts, in their order, and how many tokens these had."""

    vectors: "list[array[float]]"
    prompt_tokens: int

    @classmethod
    def from_results(cls, results: Sequence[Result]) -> Self:
        """Join what the jobs of one call came to. Raises the error of the first that failed."""
        vectors = [vector for result in results for vector in result.raise_for_error().floats]
        return cls(vectors, sum(result.usage.prompt_tokens for result in results if result.usage))


class TextCall:
    """One call of `embed` or `rerank`: its jobs, which were accepted, and the time that is left."""

    def __init__(
        self, sources: Iterable[Mapping[str, Any]], fields: Mapping[str, Any], timeout_s: float | None
    ) -> None:
        self.jobs = [{"keep_s": KEEP_S, **fields, **one} for one in sources]
        self._until_s = None if timeout_s is None else monotonic() + timeout_s
        self._outcomes: list[SubmitOutcome] = []

    def note(self, outcome: SubmitOutcome) -> None:
        self._outcomes.append(outcome)

    @property
    def accepted(self) -> list[str]:
        return [one.job_id for one in self._outcomes if one.error is None]

    @property
    def job_ids(self) -> list[str]:
        """Those of all jobs. Raises the error of the first that was not accepted."""
        for one in self._outcomes:
            if one.error is not None:
                raise one.error
        return self.accepted

    async def forget(self, ledger: Ledger) -> None:
        """Purge the jobs, which have ended."""
        await together([ledger.purge(job_id) for job_id in self.accepted])

    @property
    def left_s(self) -> float | None:
        """Seconds until the call is to end; None: no limit."""
        return None if self._until_s is None else max(0.0, self._until_s - monotonic())
