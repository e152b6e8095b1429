"""Purging jobs: afterwards no key of Redis has a byte of their prompts and outputs.

One script deletes the record, the events and Celery's result. A bare message carries its prompt itself. The
record tells which jobs came by one: only for these it is searched in the queue, in Celery's notes of messages
under way, and among the dead letters.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from llama_herd.errors import JobNotFound, JobRunning
from llama_herd.tasks.client.queued_messages import remove_messages
from llama_herd.tasks.client.submission import checked_job_id
from llama_herd.tasks.ledger.answers import JobRecord, Purge
from llama_herd.tasks.ledger.dead_letters import MAX_LETTERS, DeadLetters
from llama_herd.tasks.ledger.keys import around_id
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, together
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.protocol.message import is_queue_of
from llama_herd.tasks.protocol.priority import LANES

#: Keys or notes that one round trip reads.
STEP = 1000


async def purge_job(ledger: Ledger, job_id: str, queue: str, *, search: bool = False) -> None:
    """Purge one job. search: if it has no record, look for its bare message in `queue`.

    Raises InvalidJob, JobRunning, and JobNotFound if Redis has nothing of the job.
    """
    checked_job_id(job_id)
    record = await ledger.record(job_id)
    answer = await ledger.purge(job_id, mark=bool(search))
    if answer is Purge.RUNNING:
        raise JobRunning(f"a worker runs job {job_id}. Fix: cancel it, wait for its end, then purge it")
    if answer is Purge.BARE:
        await _forget_messages(ledger, {job_id}, _own_queues(ledger, record) or {queue})
    if answer is Purge.UNKNOWN and not (search and await _forget_messages(ledger, {job_id}, {queue})):
        if search:  # and the mark has kept the job from running meanwhile
            await ledger.unmark(job_id)
        raise JobNotFound.for_id(job_id)


async def purge_ended_jobs(ledger: Ledger) -> int:
    """Purge every job that is over, and return how many."""
    prefix, suffix = around_id(ledger.job_key).values()
    pattern = f"{_escaped_pattern(prefix)}*{_escaped_pattern(suffix)}"
    num_purged = 0
    bare_ids: set[str] = set()
    queues: set[str] = set()
    cursor: int | None = 0
    while cursor is not None:
        cursor, keys = await _scan("SCAN", (), cursor, "MATCH", pattern, "TYPE", "hash")
        job_ids = [text(key).removeprefix(prefix).removesuffix(suffix) for key in keys]
        records = await together([ledger.record(job_id) for job_id in job_ids])
        over = {
            job_id: record
            for job_id, record in zip(job_ids, records, strict=True)
            if record is not None and record.is_final
        }
        answers = await together([ledger.purge(job_id) for job_id in over])
        num_purged += len(over)
        bare = {job_id for job_id, answer in zip(over, answers, strict=True) if answer is Purge.BARE}
        bare_ids |= bare
        queues.update(*(_own_queues(ledger, over[job_id]) for job_id in bare))
    if bare_ids:
        await _forget_messages(ledger, bare_ids, queues)
    return num_purged


def _own_queues(ledger: Ledger, record: JobRecord | None) -> set[str]:
    """The queue in a record, if it is a queue of this tenant; anybody may have written the record."""
    return {record.queue} if record is not None and is_queue_of(ledger.tenant, record.queue) else set()


async def _forget_messages(ledger: Ledger, job_ids: Collection[str], queues: Collection[str]) -> int:
    """Remove the jobs' messages from the queues, from Celery's notes and from the dead letters.

    Returns how many there were.
    """

    async def theirs(messages: Sequence[bytes]) -> list[bytes]:
        return [message for message in messages if _job_of(message) in job_ids]

    lists = [f"{queue}{lane}" for queue in queues for lane in LANES]
    num_found = sum([await remove_messages(name, theirs) for name in lists])
    num_found += await _forget_unacked(ledger, job_ids)
    letters = DeadLetters(ledger.tenant)
    for letter in await letters.letters(MAX_LETTERS):
        if _job_of(letter.raw) in job_ids:
            num_found += await letters.drop(letter.number)
    return num_found


async def _forget_unacked(ledger: Ledger, job_ids: Collection[str]) -> int:
    num_found = 0
    cursor: int | None = 0
    while cursor is not None:
        cursor, fields = await _scan("HSCAN", (ledger.unacked_key,), cursor)
        for tag, held in fields.items():
            if _job_of(held) in job_ids:
                num_found += await RedisCall("HDEL", (ledger.unacked_key,), (tag,), int)
                await RedisCall("ZREM", (f"{ledger.unacked_key}_index",), (tag,), int)
    return num_found


def _scan(command: str, keys: Sequence[str], cursor: int, *args: str) -> RedisCall[tuple[int | None, Any]]:
    """One step of a scan. Answers the cursor of the next step, None after the last, and the finds."""
    return RedisCall(
        command, keys, (cursor, *args, "COUNT", STEP), lambda reply: (int(reply[0]) or None, reply[1])
    )


def _escaped_pattern(text: str) -> str:
    """`text` escaped, so that as a pattern it matches only itself."""
    return "".join(f"\\{char}" if char in "[]?*\\^{}" else char for char in text)


def _job_of(message: bytes) -> str | None:
    """The id of the job that a message names. In Celery's notes the message is the first of three items."""
    try:
        found = json.loads(message)
        found = found[0] if isinstance(found, list) else found
        job_id = found["headers"]["id"]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    return job_id if isinstance(job_id, str) else None
