"""Jobs that are to end, and that no worker ends: none is up, or theirs has died. Who looks at them ends them.

While a worker of the tenant is up, its sweeps do the same within a second.
"""

from collections.abc import Sequence
from typing import Any

from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.ledger.job_lists import MAX_LOOKS, JobLists
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, both, each, raise_if_error, redis_time_ms

#: The lists with such jobs, the longest overdue first: by their deadlines, and by the ends of their leases.
#: And how many of each a look at a tenant takes: of those whose worker has died, few may be to end.
LEFT = {"pending:deadlines": 100, "leases": MAX_LOOKS}


async def read_record(ledger: Ledger, job_id: str) -> tuple[JobRecord | None, int]:
    """A job's record, and the time. A job that is to end does so; a live worker that has it is told."""
    record, now_ms = await both(ledger.record(job_id), redis_time_ms())
    reason = record and record.reason_to_end(now_ms)
    if reason:
        await each([ledger.cancel(job_id, reason)])  # if this user may not, somebody else will
        record = await ledger.record(job_id)
    return record, now_ms


async def end_left(ledger: Ledger, job_ids: Sequence[str]) -> None:
    """End those of these jobs that are to end, but for damaged ones. Live workers are told of theirs."""
    if job_ids:
        now_ms = await redis_time_ms()
        records = zip(job_ids, await each([ledger.record(one) for one in job_ids]), strict=True)
        sound = [(job_id, record) for job_id, record in records if isinstance(record, JobRecord)]
        reasons = [(job_id, record.reason_to_end(now_ms)) for job_id, record in sound]
        await each([ledger.cancel(job_id, reason) for job_id, reason in reasons if reason])


async def end_all_left(ledger: Ledger) -> None:
    """End those of a tenant's jobs that are to end, of very many some: one round trip if there is none."""
    lists = JobLists(ledger.tenant)
    calls: list[RedisCall[Any]] = [lists.members(name, None, most) for name, most in LEFT.items()]
    *found, now_ms = await each([*calls, redis_time_ms()])
    over = [one for members in found if isinstance(members, list) for one in members]
    now: int = raise_if_error(now_ms)
    await end_left(ledger, [one.job_id for one in over if float(one.score) <= now])
