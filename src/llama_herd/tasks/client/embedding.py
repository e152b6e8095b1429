"""Vectors and ranks of any number of texts: as many jobs as that takes, and what they come to."""

import uuid
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.tasks.client.arguments import checked_seconds
from llama_herd.tasks.client.job_cancel import cancel_each
from llama_herd.tasks.client.lots import SubmitOutcome
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import together
from llama_herd.tasks.protocol.given import checked_items, checked_kind
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.text_job import count_from, counted_from, num_texts_of

#: How long the jobs of a call that waits are kept, should it not come to purge them.
KEEP_S = 3600


@dataclass(frozen=True)
class Embeddings:
    """The vectors of texts, in their order, and how many tokens these had."""

    vectors: "list[array[float]]"
    prompt_tokens: int

    @classmethod
    def from_results(cls, results: Sequence[Result]) -> Self:
        """Join what the jobs of one call came to. Raises the error of the first that failed, and BadInput."""
        given = checked_items("results", results, "the results of jobs")
        found = [checked_kind("results", one, Result, "the results of jobs alone") for one in given]
        vectors = all_floats(found)
        return cls(vectors, sum(result.usage.prompt_tokens for result in found if result.usage))


def all_floats(results: Iterable[Result]) -> "list[array[float]]":
    """What the jobs of a call came to, in the order of its texts. Raises the error of one that failed."""
    found: list[array[float]] = []
    for result in results:
        try:
            found += result.raise_for_error().floats
        except GenerationError as error:
            message = counted_from(len(found), error.message)
            raise GenerationError(error.code, message, error.retriable) from None
    return found


class TextCall:
    """One call of `embed` or `rerank`: its jobs, what became of them, and the time that is left."""

    def __init__(
        self, sources: Iterable[Mapping[str, Any]], fields: Mapping[str, Any], timeout_s: float | None
    ) -> None:
        # The call reads their events and purges them: Celery's copy of the vectors would be read by nobody.
        own = {"keep_s": KEEP_S, **fields, "ignore_result": True}
        # With ids of ours also those can be cancelled of which nobody has heard whether they were accepted.
        self.jobs = [{**own, **one, "job_id": str(uuid.uuid4())} for one in sources]
        limit_s = checked_seconds("timeout_s", timeout_s)
        self._until_s = None if limit_s is None else monotonic() + limit_s
        self._outcomes: list[SubmitOutcome] = []

    def note(self, outcome: SubmitOutcome) -> None:
        self._outcomes.append(outcome)

    @property
    def job_ids(self) -> list[str]:
        """Those of all jobs. Raises the error of the first that was not accepted."""
        first = 0
        for asked, one in zip(self.jobs, self._outcomes, strict=True):
            if isinstance(one.error, InvalidJob):
                raise count_from(first, one.error)
            if one.error is not None:
                raise one.error
            first += num_texts_of(asked)
        return [one.job_id for one in self._outcomes]

    async def cancel(self, ledger: Ledger) -> None:
        """End those of its jobs that have been accepted and have not ended."""
        await cancel_each(ledger, [one["job_id"] for one in self.jobs])

    async def forget(self, ledger: Ledger) -> None:
        """Purge the jobs, which have ended."""
        await together([ledger.purge(job_id) for job_id in self.job_ids])

    @property
    def left_s(self) -> float | None:
        """Seconds until the call is to end; None: no limit."""
        return None if self._until_s is None else max(0.0, self._until_s - monotonic())
