"""Many jobs on their way to Redis: a lot of them in each round trip, and what became of each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import ResponseError

from llama_herd.errors import HerdError, InvalidJob, RedisUnavailable
from llama_herd.tasks.client.arguments import checked_count
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.submission import (
    NewJob,
    missing_replicas,
    new_job_from_arguments,
    queue_note,
    submit_error,
)
from llama_herd.tasks.connection.connect import unavailable
from llama_herd.tasks.ledger.answers import Submitted
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import each
from llama_herd.tasks.ledger.submit_item import SubmitItem
from llama_herd.tasks.protocol.given import checked_items
from llama_herd.tasks.protocol.kinds import Job

#: Most jobs of a lot.
MAX_LOT_JOBS = 1000
#: Jobs of a lot, if nobody says otherwise, where each takes its time from an event loop.
ASYNC_LOT_JOBS = 100
#: Most bytes of a lot that has several.
MAX_LOT_BYTES = 4 << 20
#: Most jobs in one call of the script. Redis serves nobody else meanwhile, and some services that host one
#: refuse a call of more than 4,000 arguments.
MAX_CALL_JOBS = 50

#: A job as `submit` takes it: all its arguments in one mapping, or a job.
JobToSubmit = Job | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SubmitOutcome:
    """The outcome of one job of `submit_many`: its id, and the error if it was not accepted.

    job_id: its id; empty if it is not valid.
    error: None if it was accepted, else why not. Only after a RedisUnavailable it may be accepted all the
        same. To submit the same job again under its id is safe: it runs once.
    """

    job_id: str
    error: HerdError | None = None


class PreparedJob(NamedTuple):
    """A valid job, ready to be sent."""

    named: NewJob
    item: SubmitItem

    @classmethod
    def prepare(cls, named: NewJob, ledger: Ledger, keep_s: int | None = None) -> "PreparedJob":
        return cls(named, ledger.submit_item(named.job_id, named.job, named.envelope, keep_s))


#: A job of a lot; one that is not valid has its outcome already.
LotEntry = PreparedJob | SubmitOutcome
E = TypeVar("E", bound=LotEntry)


class Lots:
    """The jobs of one `submit_many`, lot by lot. Both clients use it, and add the connection."""

    def __init__(
        self, jobs: Iterable[JobToSubmit], max_jobs: int, core: ClientCore, *, is_bulk: bool = True
    ) -> None:
        """is_bulk: whether they are kept for longer than jobs that come one by one."""
        self._jobs = checked_items("jobs", jobs, "an iterable of jobs")
        self._max_jobs = checked_count("lot", max_jobs, 1, MAX_LOT_JOBS, unit=" jobs")
        self._ledger, self._settings, self._url = core.ledger, core.settings, core.url
        self._keep_s = max(core.ledger.bulk_ttl_s, core.ledger.stream_ttl_s) if is_bulk else None
        self._noted: set[str] = set()

    def __iter__(self) -> Iterator[list[LotEntry]]:
        return cut_into_lots(map(self._entry, self._jobs), self._max_jobs)

    def _entry(self, given: JobToSubmit) -> LotEntry:
        try:
            named = new_job_from_arguments(given, self._settings)
            return PreparedJob.prepare(named, self._ledger, self._keep_s)
        except InvalidJob as error:
            return SubmitOutcome("", error)

    async def submit(self, lot: Sequence[LotEntry]) -> tuple[list[SubmitOutcome], list[str]]:
        """Send a lot, and wait for replicas if that is set.

        Returns the outcomes, and what is wrong with queues that no lot before has met.
        """
        posts = [one for one in lot if isinstance(one, PreparedJob)]
        answers = await submit_lot(self._ledger, posts)
        errors = [
            unavailable(answer, self._url)
            if isinstance(answer, ResponseError)
            else submit_error(self._ledger, post.named, answer)
            for post, answer in zip(posts, answers, strict=True)
        ]
        ids = [post.named.job_id for post in posts]
        accepted = [job_id for job_id, error in zip(ids, errors, strict=True) if error is None]
        too_few = await missing_replicas(accepted, self._ledger, self._settings)
        sent = (
            SubmitOutcome(job_id, error or too_few.get(job_id))
            for job_id, error in zip(ids, errors, strict=True)
        )
        outcomes = [one if isinstance(one, SubmitOutcome) else next(sent) for one in lot]
        return outcomes, await self._notes(posts, answers)

    def lost_outcomes(self, lot: Sequence[LotEntry], error: RedisUnavailable) -> list[SubmitOutcome]:
        """The outcomes of a lot that was under way when the connection was lost."""
        return [
            SubmitOutcome(one.named.job_id, error) if isinstance(one, PreparedJob) else one for one in lot
        ]

    async def _notes(
        self, posts: Sequence[PreparedJob], answers: Sequence[Submitted | ResponseError]
    ) -> list[str]:
        notes = []
        for post, answer in zip(posts, answers, strict=True):
            queue = post.named.envelope.queue
            if queue not in self._noted and isinstance(answer, Submitted) and answer.served_instead:
                self._noted.add(queue)
                notes.append(await queue_note(self._ledger, post.named, answer))
        return [*filter(None, notes)]


def cut_into_lots(entries: Iterable[E], max_jobs: int = MAX_LOT_JOBS) -> Iterator[list[E]]:
    """Split jobs into lots. No more are read than a lot takes, and one that is too long for it."""
    lot: list[E] = []
    num_bytes = 0
    for one in entries:
        size = one.item.num_bytes if isinstance(one, PreparedJob) else 0
        if lot and num_bytes + size > MAX_LOT_BYTES:
            yield lot
            lot, num_bytes = [], 0
        lot.append(one)
        num_bytes += size
        if len(lot) == max_jobs:
            yield lot
            lot, num_bytes = [], 0
    if lot:
        yield lot


async def submit_lot(ledger: Ledger, posts: Sequence[PreparedJob]) -> list[Submitted | ResponseError]:
    """Submit jobs in one round trip. The error of one stands in the place of its answer.

    Jobs whose call is refused are sent one by one: it may be because of one of them, such as one for a queue
    to which the user has no right.
    """
    calls = [posts[first : first + MAX_CALL_JOBS] for first in range(0, len(posts), MAX_CALL_JOBS)]
    replies = await each([ledger.submit_many([post.item for post in call]) for call in calls])
    answers: list[Submitted | ResponseError] = []
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, ResponseError):
            answers += await each([ledger.submit_one(post.item) for post in call])
        else:
            answers += reply
    return answers
