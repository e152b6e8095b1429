"""A window over many jobs: what to submit, to ask and to read next. It has no connection.

After a crash a row is found again by its job's id alone, a pure function of run and row. Submitting the row
again names the same job, which continues from its tokens so far, or whose result is read.
"""

import uuid
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from redis.exceptions import ResponseError

from llama_herd.error_code import ErrorCode
from llama_herd.errors import KeptFull, RecordUnreadable
from llama_herd.tasks.client.arguments import checked_count
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchJob, BatchRow
from llama_herd.tasks.client.batch.joined_rows import items_of, rows_of
from llama_herd.tasks.client.batch.parked_rows import ParkedRows
from llama_herd.tasks.client.batch.row_feed import RowFeed, RowJob
from llama_herd.tasks.client.batch.vector_room import VectorRoom
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.job_cancel import cancel_each
from llama_herd.tasks.client.lots import PreparedJob, cut_into_lots, submit_lot
from llama_herd.tasks.client.pausing import paused_queues
from llama_herd.tasks.client.submission import NewJob, checked_run_id, queue_full_error
from llama_herd.tasks.connection.complaint import redis_complaint
from llama_herd.tasks.ledger.answers import UNENDED, Cancellation, Submission, Submitted
from llama_herd.tasks.ledger.left_jobs import end_left
from llama_herd.tasks.ledger.redis_call import each, raise_if_error, together
from llama_herd.tasks.protocol.close_names import close_models, did_you_mean
from llama_herd.tasks.protocol.events import Event, Failure
from llama_herd.tasks.protocol.message import Envelope, model_of, queue_name
from llama_herd.tasks.protocol.result import Result

MIN_PAUSE_S = 0.005
MAX_PAUSE_S = 0.2

#: Ended jobs that a round should find. Until then their places in the window are empty.
_WANTED = 2


def next_pause_s(pause_s: float, num_ended: int) -> float:
    """The pause after a round in which so many jobs have ended: short if they end fast."""
    factor = 1.5 if num_ended == 0 else 1.0 if num_ended <= _WANTED else 0.5
    return min(MAX_PAUSE_S, max(MIN_PAUSE_S, pause_s * factor))


class InOrder:
    """Holds items back until all items before them have come."""

    def __init__(self) -> None:
        #: The numbers of the rows whose items have not been handed out yet.
        self.expected: deque[int] = deque()
        self._held: dict[int, BatchItem] = {}

    def split(self, row: BatchRow) -> None:
        """Expect the rows that have shared a job one by one."""
        at = self.expected.index(row.index)
        del self.expected[at]
        for one in reversed(rows_of(row)):
            self.expected.insert(at, one.index)

    def sort(self, items: Iterable[BatchItem]) -> list[BatchItem]:
        """Add items, and return those whose turn it is."""
        self._held |= {item.index: item for item in items}
        ready = []
        while self.expected and self.expected[0] in self._held:
            ready.append(self._held.pop(self.expected.popleft()))
        return ready


#: Most jobs under way while no worker is known.
MIN_WINDOW = 32
#: Jobs that a worker holds in addition to its slots: enough to fill a slot at once, but no queue.
LOOK_AHEAD = 8
#: How often workers are counted.
COUNT_WORKERS_S = 3.0

#: How long to wait after Redis has answered a submission with an error.
REFUSED_S = 1.0

_UNSENT = Failure(code=ErrorCode.CANCELLED, message="the job was never submitted")

#: Most items to hand out at once, roughly.
MAX_GROUP = 1024
#: Ended rows that may wait for an earlier one, as a multiple of the window.
HELD_BACK = 4


class BatchWindow:
    """Keeps as many jobs under way as the workers can hold, and hands out the items of those that have ended.

    Both batches use this class and add the connection. They run `round` after round. Each round first deletes
    the jobs whose items the round before has handed out.

    Rows whose model no worker has take no room from others: a few of them wait in the queue, so that it shows
    what is due, and more are parked. In order none is, since none behind could be handed out.
    """

    #: Whether rows of models without workers are parked.
    may_park = True

    def __init__(
        self,
        core: ClientCore,
        jobs: Iterable[BatchJob],
        *,
        run_id: str | None = None,
        size: int | None = None,
        in_order: bool = False,
    ) -> None:
        """`size`: most jobs under way; None: as many as workers can hold. Raises InvalidJob, BadInput."""
        self.run_id = checked_run_id(run_id or uuid.uuid4().hex)
        self.size = MIN_WINDOW if size is None else checked_count("window", size) or MIN_WINDOW
        self._core = core
        self._feed = RowFeed(jobs, core.settings, self.run_id)
        self._follows_workers = size is None
        self._count_at_s = 0.0
        self._submit_at_s = 0.0
        #: Why Redis refused some of the jobs that were last sent; empty: it did not, or a queue was full.
        self.refusal = ""
        #: The models of all jobs so far.
        self.models: set[str] = set()
        self._parked = ParkedRows(may_park=self.may_park and not in_order)
        #: The models that no worker had when workers were last counted, each with what may be meant.
        self.unserved: Mapping[str, str] = {}
        self._waiting: deque[RowJob] = deque()
        self._under_way: dict[str, RowJob] = {}
        self._ended: list[BatchItem] = []
        self.is_in_order = in_order
        self._order = InOrder() if in_order else None
        #: Ids of ended jobs whose items were handed out, or that are tried again: to be deleted from Redis.
        self._handed_out: list[str] = []
        #: The rows of these items. Until they are deleted their vectors are in Redis.
        self._leaving: list[int] = []
        self._room = VectorRoom()
        #: Whether `cancel` has been called, and the jobs that Redis has cancelled since then.
        self.is_cancelled = False
        self._cancelled: set[str] = set()
        #: How long to wait before the next round.
        self.pause_s = MIN_PAUSE_S

    @property
    def num_under_way(self) -> int:
        """Jobs that are submitted and not known to have ended."""
        return len(self._under_way)

    @property
    def is_over(self) -> bool:
        """Whether all items have been handed out, and their jobs deleted from Redis."""
        is_busy = (
            *(self._waiting, self._under_way, self._parked, self._ended),
            *(self._order and self._order.expected, self._handed_out),
        )
        return not (self._feed.is_open or any(is_busy))

    @property
    def without_worker(self) -> frozenset[str]:
        """The models of all jobs so far that no worker had when workers were last counted."""
        served = self._parked.served
        return frozenset() if served is None else frozenset(self.models - served)

    @property
    def is_stalled(self) -> bool:
        """Whether each row that is read waits for a worker of a model that has none."""
        parked, rows = self._parked, [*self._under_way.values(), *self._waiting]
        is_served = parked.has_served or any(map(parked.is_served, rows))
        return parked.served is not None and bool(rows or parked) and not is_served

    def stop(self) -> None:
        """Read no more rows. Jobs that were submitted go on to their end; parked rows are not done."""
        self._feed.stop()
        self._parked.clear()

    async def cancel(self) -> None:
        """Read no more rows, and cancel the jobs under way. Their items are still to come.

        A round may be under way, in another task or thread. If Redis refuses, or is away, the next rounds
        try again.
        """
        self.stop()
        self.is_cancelled = True
        await self._cancel_jobs()

    async def _cancel_jobs(self) -> None:
        job_ids = self._to_cancel
        answers = zip(job_ids, await cancel_each(self._core.ledger, job_ids), strict=True)
        self._cancelled.update(job_id for job_id, answer in answers if answer is not Cancellation.UNKNOWN)

    @property
    def _to_cancel(self) -> list[str]:
        """What is under way; and what waits, which may be accepted, too, if the answer was lost."""
        job_ids = [*self._under_way, *(one.job_id for one in list(self._waiting))]
        return [job_id for job_id in job_ids if job_id not in self._cancelled]

    @property
    def must_cancel(self) -> bool:
        """Whether `cancel` was called, and Redis has not heard of it for all jobs."""
        return self.is_cancelled and bool(self._to_cancel)

    async def round(self, now_s: float, *, forgets: bool = True) -> list[BatchItem]:
        """Delete the jobs handed out, submit jobs while there is room, and return the items of ended jobs.

        forgets: whether the items so far are safe; if not, a later round deletes their jobs. Each step takes
        effect only when its answers have come, so a lost connection costs nothing.
        """
        if forgets and self._handed_out:
            await together([self._core.ledger.purge(job_id) for job_id in self._handed_out])
            self._handed_out.clear()
            self._room.free(self._leaving)
            self._leaving.clear()
        if now_s >= self._count_at_s:
            await self._count_workers(now_s)
        self._read_rows()
        if self.is_cancelled:
            with suppress(ResponseError):  # Redis may be full: what has ended makes room
                await self._cancel_jobs()
            self._ended += (BatchItem(one.row, one.job_id, rejection=_UNSENT) for one in self._waiting)
            self._waiting.clear()
        elif self._waiting and now_s >= self._submit_at_s:
            await self._submit(now_s)
        await self._collect_ended()
        items, self._ended = self._ended, []
        if self._order is not None:
            items = self._order.sort(items)
        self._handed_out += (item.job_id for item in items if item.job_id)
        self._leaving += (item.index for item in items)
        return [row for item in items for row in items_of(item)]

    async def _count_workers(self, now_s: float) -> None:
        workers = await self._core.reports.workers()
        self._count_at_s = now_s + COUNT_WORKERS_S
        served = frozenset(worker.model for worker in workers)
        missing = self.models - served - {*self._core.settings.standing_models}
        if missing:  # a paused one is no mistake
            tenant = self._core.settings.tenant
            missing -= {model_of(queue, tenant) for queue in await paused_queues(tenant)}
        self.unserved = {name: did_you_mean(close_models(name, sorted(served))) for name in missing}
        self._parked.note_served(served)
        if not workers:  # any worker would end late jobs at its next sweep
            await end_left(self._core.ledger, list(self._under_way))
        if self._follows_workers:
            room = sum(worker.slots + LOOK_AHEAD for worker in workers if worker.model in self.models)
            self.size = room or MIN_WINDOW

    def _read_rows(self) -> None:
        """Read rows as long as there is room for their jobs: few for those whose model no worker has."""
        held = Counter(map(self._parked.may_run, chain(self._waiting, self._under_way.values())))
        while held[True] < self.size and not self._room.is_full and self._has_room:
            taken = self._next_row()
            if taken is None:
                return
            if isinstance(taken, BatchItem):
                self._ended.append(taken)
                continue
            model = str(taken.job.model)
            if model not in self.models:
                self.models.add(model)
                self._count_at_s = 0.0
            may_run = self._parked.may_run(taken)
            if may_run or held[False] < min(self.size, MIN_WINDOW):
                held[may_run] += 1
                self._room.take(taken.row.index, taken.job)
                self._waiting.append(taken)
            else:
                self._parked.park(taken)

    def _next_row(self) -> RowJob | BatchItem | None:
        if (ready := self._parked.take_ready()) is not None:
            return ready
        taken = self._feed.take()
        while isinstance(taken, RowJob) and taken.row.is_done:
            self._handed_out.append(taken.job_id)
            taken = self._feed.take()
        if taken is not None and self._order is not None:
            self._order.expected.append(taken.row.index)
        return taken

    @property
    def _has_room(self) -> bool:
        num_held = len(self._order.expected) if self._order is not None else 0
        may_hold = num_held < HELD_BACK * max(self.size, MIN_WINDOW)
        may_read = not self._parked.is_full and len(self._ended) < MAX_GROUP and may_hold
        return may_read or self._parked.has_ready

    async def _submit(self, now_s: float) -> None:
        lot = next(cut_into_lots(map(self._prepared, self._waiting)))
        answers = await submit_lot(self._core.ledger, lot)
        self.refusal = ""
        for post, answer in zip(lot, answers, strict=True):
            self._note_submission(self._waiting.popleft(), post.named, answer, now_s)
        refusals = [answer for answer in answers if isinstance(answer, ResponseError)]
        if refusals and not self._under_way:
            raise refusals[0]
        if refusals:
            # Redis may be full: jobs under way make room when they end.
            self.refusal = f"Redis {redis_complaint(refusals[0])}"
            self._submit_at_s = now_s + REFUSED_S

    def _note_submission(
        self, one: RowJob, named: NewJob, answer: Submitted | ResponseError, now_s: float
    ) -> None:
        kind = None if isinstance(answer, ResponseError) else answer.kind
        if kind in (Submission.SUBMITTED, Submission.EXISTS):
            self._under_way[one.job_id] = one
            return
        if kind is Submission.CONFLICT:
            # The job of this id was purged, or is a different one: the row gets its next id.
            one.number += 1
        elif isinstance(answer, Submitted) and kind is Submission.KEPT_FULL:
            self.refusal = str(KeptFull(*answer.kept))
            self._submit_at_s = now_s + REFUSED_S
        elif isinstance(answer, Submitted):
            self._submit_at_s = now_s + queue_full_error(self._core.ledger, named, answer).retry_after_s
        self._waiting.append(one)

    async def _collect_ended(self) -> None:
        """Ask for the states of all jobs under way, and read the events of those that have ended."""
        ledger = self._core.ledger
        row_jobs = list(self._under_way.values())
        states = await together([ledger.state(one.job_id) for one in row_jobs])
        over = []
        for one, state in zip(row_jobs, states, strict=True):
            if state is None:  # the batch paused for too long, or Redis has lost data
                self._waiting.append(self._under_way.pop(one.job_id))
            elif state not in UNENDED:
                over.append(one)
        self.pause_s = next_pause_s(self.pause_s, len(over))
        if over:
            streams = await each([ledger.read(one.job_id) for one in over])
            for stream in streams:
                if isinstance(stream, ResponseError) and not isinstance(stream, RecordUnreadable):
                    raise stream
            for one, events in zip(over, streams, strict=True):
                self._note_end(one, events)

    def _note_end(self, one: RowJob, events: list[Event] | ResponseError) -> None:
        del self._under_way[one.job_id]
        if not events:  # Redis has lost them; the job itself may be there, and would be found again
            self._try_again(one)
            return
        item = BatchItem(one.row, one.job_id, one.job.model)
        try:
            item = replace(item, result=Result.from_events(raise_if_error(events)))
        except RecordUnreadable as error:
            item = replace(item, rejection=Failure(code=ErrorCode.UNREADABLE, message=str(error)))
        self._room.learn(item.result)
        if item.result is not None and one.is_worth_another(item.result.error):
            self._try_again(one)
        elif one.row.joined and item.failure is not None and item.failure.code != ErrorCode.CANCELLED:
            self._split(one)
        else:
            self._ended.append(item)

    def _try_again(self, one: RowJob) -> None:
        """Let a row wait under its next id, and have its job so far deleted."""
        self._handed_out.append(one.job_id)
        one.number += 1
        self._waiting.append(one)

    def _split(self, one: RowJob) -> None:
        """Run joined rows one by one, since one of them may be why their job has failed."""
        if self.is_cancelled:
            self._ended.append(BatchItem(one.row, one.job_id, rejection=_UNSENT))
            return
        self._handed_out.append(one.job_id)
        self._room.free([one.row.index])
        if self._order is not None:
            self._order.split(one.row)
        for taken in map(self._feed.row_job, rows_of(one.row)):
            if isinstance(taken, BatchItem):
                self._ended.append(taken)
            else:
                self._room.take(taken.row.index, taken.job)
                self._waiting.append(taken)

    def _prepared(self, one: RowJob) -> PreparedJob:
        """A job of which Celery stores no result: the batch reads its events, and then deletes it."""
        queue = queue_name(str(one.job.model), self._core.settings.tenant)
        envelope = Envelope.for_job(one.job_id, queue, ignore_result=True)
        return PreparedJob.prepare(NewJob(one.job_id, "job_id", envelope, one.job), self._core.ledger)
