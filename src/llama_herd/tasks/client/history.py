"""The history of a job: all that Redis has of it."""

import json
from typing import Any, NamedTuple

from llama_herd.errors import JobNotFound, RecordUnreadable
from llama_herd.tasks.client.submission import checked_job_id
from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.events import Event


class History(NamedTuple):
    """A job's record, its events, and its body: the job as it was accepted, with its prompt."""

    record: JobRecord
    events: list[Event]
    body: dict[str, Any]


async def read_history(ledger: Ledger, job_id: str) -> History:
    """Read all that Redis has of a job. Raises JobNotFound."""
    record = await ledger.record(checked_job_id(job_id))
    body = await ledger.body(job_id)
    if record is None or body is None:
        raise JobNotFound.for_id(job_id)
    return History(record, (await ledger.read(job_id)), _fields(job_id, body))


def _fields(job_id: str, body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RecordUnreadable(f"the body in the record of job {job_id} is not a job. Fix: purge it")
    return fields
