"""Counting and cancelling all jobs that run or wait of a model or a batch."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.client.arguments import MODEL, is_model
from llama_herd.tasks.client.queued_messages import remove_messages
from llama_herd.tasks.client.submission import checked_run_id
from llama_herd.tasks.connection.temporary_errors import is_temporary
from llama_herd.tasks.ledger.answers import UNENDED, Cancellation
from llama_herd.tasks.ledger.job_lists import MAX_PAGE, Index, JobLists, JobPage
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import each, together
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.job import ROW_PREFIX
from llama_herd.tasks.protocol.message import is_queue_of, queue_name
from llama_herd.tasks.protocol.priority import LANES

#: How often the waiting jobs are gone through. Others join and leave meanwhile, which moves their places.
MAX_ROUNDS = 10
#: The tag of a message that a script has pushed, with the job's id. Bare messages have Celery's own tags, and
#: carry their jobs.
_TAG = re.compile(rb'"delivery_tag": ?"([\w.:-]+):[0-9]+:[0-9]+"')


async def cancel_each(ledger: Ledger, job_ids: Iterable[str]) -> list[Cancellation | ResponseError]:
    """Cancel jobs in one round trip. A damaged record stands in the way of no other job.

    Raises the error if Redis refuses for a while, as when it is full.
    """
    answers = await each([ledger.cancel(job_id) for job_id in job_ids])
    for answer in answers:
        if isinstance(answer, ResponseError) and is_temporary(answer):
            raise answer
    return answers


@dataclass(frozen=True, slots=True)
class JobSelection:
    """The waiting and running jobs: of a model, of a batch, of a model in a batch, or all."""

    ledger: Ledger
    model: str | None
    run_id: str | None

    def __post_init__(self) -> None:
        """Raises InvalidJob if `run_id` cannot be the name of a batch, or `model` that of a model."""
        if self.model is not None and not is_model(self.model):
            raise InvalidJob([FieldError("model", f"must be {MODEL}")])
        if self.run_id is not None:
            checked_run_id(self.run_id)

    async def count(self) -> int:
        """How many jobs these are. One that is claimed meanwhile may count twice, but is not missed."""
        num_waiting = sum([len(ids) async for ids in self._ids_in("pending")])
        running = {job_id async for ids in self._ids_in("leases") for job_id in ids}
        return num_waiting + len(running)

    async def cancel(self) -> int:
        """Cancel them and return how many. The waiting ones come first, so that none begins meanwhile.

        A model's queue that no worker serves is cleared of their messages, so that nothing tells of it any
        more. Raises TypeError if these are all.
        """
        if self.model is None and self.run_id is None:
            raise TypeError("give a model or a run_id")
        num_cancelled = 0
        for _ in range(MAX_ROUNDS):
            num_ended, _ = await self._cancel_in("pending")
            num_cancelled += num_ended
            if not num_ended:
                break
        num_ended, num_asked = await self._cancel_in("leases")
        if self.model is not None:
            await forget_stale_messages(self.ledger, self.model)
        return num_cancelled + num_ended + num_asked

    async def _cancel_in(self, index: Index) -> tuple[int, int]:
        """Go through one list. Returns how many jobs have ended, and how many their workers will end."""
        num_ended, asked = 0, set[str]()
        async for ids in self._ids_in(index):
            answers = await cancel_each(self.ledger, ids)
            num_ended += answers.count(Cancellation.CANCELLED)
            asked |= {one for one, how in zip(ids, answers, strict=True) if how is Cancellation.ASKED}
        return num_ended, len(asked)

    async def _ids_in(self, index: Index) -> AsyncIterator[list[str]]:
        """The ids of these jobs in one list, page by page."""
        queue = "" if self.model is None else queue_name(self.model, self.ledger.tenant)
        prefix = "" if self.run_id is None else f"{ROW_PREFIX}{self.run_id}-"
        lists, cursor = JobLists(self.ledger.tenant), None
        while True:
            page = await lists.jobs(index, cursor, queue=queue, prefix=prefix, most=MAX_PAGE)
            yield self._ids(page)
            if page.next is None:
                break
            cursor = page.next

    def _ids(self, page: JobPage) -> list[str]:
        """Their ids. The name of another run may begin with this one's."""
        names = (row.job_id for row in page.rows)
        if self.run_id is None:
            return list(names)
        row_id = re.compile(rf"{ROW_PREFIX}{re.escape(self.run_id)}-[0-9]+(:[0-9]+)?(\.[0-9]+)?")
        return [name for name in names if row_id.fullmatch(name)]


async def forget_stale_messages(ledger: Ledger, model: str) -> int:
    """Remove messages of jobs that have ended from a model's queue, and return how many.

    0 if a worker serves it: that one takes them away, and nobody else would.
    """
    workers = await Reports(ledger.tenant).workers()
    if any(worker.model == model and worker.state != "stopping" for worker in workers):
        return 0
    queue = queue_name(model, ledger.tenant)
    if not is_queue_of(ledger.tenant, queue):
        return 0

    async def stale(messages: Sequence[bytes]) -> list[bytes]:
        tags = [(message, _TAG.search(message)) for message in messages]
        named = [(message, tag[1].decode()) for message, tag in tags if tag]
        states = await together([ledger.state(job_id) for _, job_id in named])
        return [message for (message, _), state in zip(named, states, strict=True) if state not in UNENDED]

    return sum([await remove_messages(f"{queue}{lane}", stale) for lane in LANES])
