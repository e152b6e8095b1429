"""A short message in place of one that is too long to be read, so that its job ends with an error."""

import re
from uuid import uuid4

from llama_herd.tasks.message import TASK_NAME, Envelope

#: The header of such a stand-in: how long the message was.
NUM_BYTES = "herd_num_bytes"

_TASK = re.compile(rb'"task": ?"%s"' % re.escape(TASK_NAME.encode()))
_ID = re.compile(rb'"id": ?"([\w.:-]{1,128})"')


def stand_in(raw: bytes, queue: str) -> bytes | None:
    """A short message of the same job; None if the long one names no generation job."""
    job_id = _ID.search(raw)
    if job_id is None or _TASK.search(raw) is None:
        return None
    envelope = Envelope.for_unread(job_id[1].decode(), queue, {NUM_BYTES: len(raw)})
    return envelope.with_tag(str(uuid4())).encode()
