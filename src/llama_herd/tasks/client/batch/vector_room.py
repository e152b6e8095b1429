"""How much of Redis' memory a batch's vectors may take, from sending their texts until they are safe here."""

from collections.abc import Iterable

from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.text_job import TextJob

#: Most bytes of texts and vectors under way.
MAX_BYTES = 32 << 20
#: Bytes that a vector is taken to have while none is known: 4,096 numbers in Base64.
UNKNOWN_VECTOR_BYTES = 21_848


class VectorRoom:
    """Room for the texts and vectors of jobs, by the rows that they belong to. Other jobs need none."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, int]] = {}
        self._num_texts = self._text_bytes = 0
        self._vector_bytes = 0

    def take(self, row: int, job: Job) -> None:
        """Count a row's job, however often it is tried."""
        if isinstance(job, TextJob) and row not in self._rows:
            self._rows[row] = job.num_texts, job.num_prompt_bytes
            self._add(*self._rows[row])

    def free(self, rows: Iterable[int]) -> None:
        """Redis has forgotten the jobs of these rows."""
        for row in rows:
            num_texts, num_bytes = self._rows.pop(row, (0, 0))
            self._add(-num_texts, -num_bytes)

    def _add(self, num_texts: int, num_bytes: int) -> None:
        self._num_texts += num_texts
        self._text_bytes += num_bytes

    def learn(self, result: Result | None) -> None:
        """See how long vectors are."""
        vectors = (result and result.vectors) or ()
        self._vector_bytes = max([self._vector_bytes, *(len(one) for one in vectors if one is not None)])

    @property
    def is_full(self) -> bool:
        """Whether no other job should be sent now."""
        num_vectors = self._num_texts * (self._vector_bytes or UNKNOWN_VECTOR_BYTES)
        return self._text_bytes + num_vectors >= MAX_BYTES
