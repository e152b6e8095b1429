"""Lists of a tenant's jobs, page by page, while jobs come, go and move on. Every call has a bounded cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.ledger.job_reads import read_fields
from llama_herd.tasks.ledger.keys import Keys, around_id
from llama_herd.tasks.ledger.redis_call import RedisCall, both
from llama_herd.tasks.ledger.replies import number_or_none, text
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.protocol.priority import LOW, NORMAL, URGENT

#: Most jobs that one call looks at.
MAX_LOOKS = 2000

#: Most jobs of one page.
MAX_PAGE = 500

#: The lists of waiting jobs, of those of them that are not due yet, and of running jobs.
Index = Literal["pending", "delayed", "leases"]
INDEXES: tuple[Index, ...] = get_args(Index)


#: The fields of a record that lists of jobs have, in the order of row.lua.
ROW = (
    *("state", "queue", "worker", "n", "attempts", "submitted_ms", "due_ms", "retries", "preemptions"),
    *("deadline_ms", "preempted_n", "retries_left", "retry_ms", "ended_ms", "finish_reason", "error"),
    "metadata",
)
#: Those that they do not have, as of a record that lacks them.
_NOT_LISTED = dict.fromkeys(JobRecord.__slots__)


class JobRow(NamedTuple):
    """A row of a list of jobs. record: of its fields those in ROW alone are known."""

    job_id: str
    record: JobRecord


class Cursor(NamedTuple):
    """How far a list has been looked at: a job in it, and its score there."""

    job_id: str
    score: str


class EndedChoice(NamedTuple):
    """Which of the jobs that have ended: of this queue, in this state, since then; empty: any.

    notes: what they must have in their metadata.
    """

    queue: str = ""
    state: str = ""
    since_ms: int = 0
    notes: Mapping[str, str] | None = None


ALL_ENDED = EndedChoice()


class JobPage(NamedTuple):
    """A page of jobs. next: where to go on; None at the end of the list."""

    next: Cursor | None
    rows: list[JobRow]


class Looked(NamedTuple):
    """How many jobs were looked at until enough were found, and the rows of those."""

    num: int
    rows: list[JobRow]


@dataclass(frozen=True)
class JobLists(Keys):
    """All calls and dialogues that list one tenant's jobs.

    No job is missed that is in the list all the time. One that moves on meanwhile may be on two pages, as a
    running one whose lease is renewed.
    """

    @staticmethod
    def line_names(queue: str) -> tuple[str, ...]:
        """The lists of a queue's waiting jobs that are due, one a lane."""
        return tuple(f"pending:{queue}{lane}" for lane in (URGENT, NORMAL, LOW))

    async def jobs(
        self,
        index: Index | str,
        cursor: Cursor | None = None,
        *,
        queue: str = "",
        prefix: str = "",
        due_ms: int | None = None,
        most: int,
        is_sparse: bool = False,
    ) -> JobPage:
        """A dialogue: jobs behind a cursor, the oldest first, of an Index or one of `line_names`.

        queue: only of this queue. prefix: only those whose ids begin so. due_ms: only those due by this time.
        most: as many at most. is_sparse: whether many of the list are gone, so that more are looked at.
        """
        num_looks = MAX_LOOKS if is_sparse or queue or prefix or due_ms is not None else most
        members = await self.members(index, cursor, num_looks)
        found = [one for one in members if one.job_id.startswith(prefix)]
        return await _page(members, num_looks, found, self.rows(index, found, queue, due_ms, most))

    async def ended_jobs(
        self,
        cursor: Cursor | None = None,
        *,
        choice: EndedChoice = ALL_ENDED,
        is_failed: bool = False,
        most: int,
        is_sparse: bool = False,
    ) -> JobPage:
        """A dialogue: jobs behind a cursor that have ended, the newest first: all, or those that failed.

        most: how many at most. is_sparse: whether many of the list are kept no longer, so that more are
        looked at.
        """
        num_looks = MAX_LOOKS if is_sparse or choice.queue or choice.state or choice.notes else most
        name = _ended_list(is_failed=is_failed)
        members = await self.members(name, cursor, num_looks, is_newest_first=True)
        return await _page(members, num_looks, members, self.ended_rows(members, choice, most))

    async def ended_cursor(self, job_id: str, *, is_failed: bool = False) -> Cursor | None:
        """A dialogue: where a job is in a list of ended ones, or was until it was purged; None: unknown."""
        listed, noted = await both(*self.ends(job_id, is_failed=is_failed))
        ended_ms = noted if listed is None else listed
        return None if ended_ms is None else Cursor(job_id, str(ended_ms))

    def members(
        self, name: str, cursor: Cursor | None, most: int, *, is_newest_first: bool = False
    ) -> RedisCall[list[Cursor]]:
        """At most so many of a list, behind a cursor, whose job may be gone."""
        last, score = cursor or ("", "")
        return call(
            "members",
            lambda reply: list(map(Cursor, map(text, reply[::2]), map(text, reply[1::2]))),
            list=self.key(name),
            last=last,
            score=score,
            most=most,
            order="desc" if is_newest_first else "asc",
        )

    def rows(
        self, index: Index | str, jobs: Sequence[Cursor], queue: str, due_ms: int | None, most: int
    ) -> RedisCall[Looked]:
        """Those of these jobs that are still in the list, and as chosen."""
        return call(
            "jobs",
            _read_rows,
            list=self.key(index),
            queue=queue,
            due_ms=due_ms,
            max_finds=most,
            **self._records_of(jobs),
        )

    def ended_rows(self, jobs: Sequence[Cursor], choice: EndedChoice, most: int) -> RedisCall[Looked]:
        """Those of these jobs that have ended, and as chosen."""
        return call(
            "ended_jobs",
            _read_rows,
            queue=choice.queue,
            state=choice.state,
            since_ms=choice.since_ms,
            notes=[{"name": name, "value": value} for name, value in (choice.notes or {}).items()],
            max_finds=most,
            **self._records_of(jobs),
        )

    def ends(self, job_id: str, *, is_failed: bool) -> tuple[RedisCall[int | None], RedisCall[int | None]]:
        """When a job ended: as a list of such has it, and as its record does, or what a purge has left."""
        listed = (self.key(_ended_list(is_failed=is_failed)),)
        return (
            RedisCall("ZSCORE", listed, (job_id,), lambda score: None if score is None else int(score)),
            RedisCall("HGET", (self.job_key(job_id),), ("ended_ms",), number_or_none),
        )

    def _records_of(self, jobs: Sequence[Cursor]) -> dict[str, Any]:
        """The records of jobs, and what their keys have around the ids."""
        return {**around_id(self.job_key), "records": [self.job_key(one.job_id) for one in jobs]}


def _ended_list(*, is_failed: bool) -> str:
    return "failed" if is_failed else "ended"


async def _page(
    members: Sequence[Cursor], num_asked: int, found: Sequence[Cursor], rows: RedisCall[Looked]
) -> JobPage:
    """A dialogue: the page with the rows of `found`, of these members of a list."""
    looked = await rows if found else Looked(0, [])
    if looked.num < len(found):
        return JobPage(found[looked.num - 1], looked.rows)
    return JobPage(members[-1] if len(members) == num_asked else None, looked.rows)


def _read_rows(reply: list[Any]) -> Looked:
    num, *rows = reply
    return Looked(num, [_job_row(*row) for row in rows])


def _job_row(job_id: bytes, *values: bytes | None) -> JobRow:
    fields = _NOT_LISTED | dict(zip(ROW, values, strict=True))
    return JobRow(text(job_id), JobRecord(**read_fields(fields)))
