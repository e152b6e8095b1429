"""What stands in for a message that is too long to be read, so that whoever waits for its job is told."""

import base64
import json
import re
from uuid import uuid4

from llama_herd.tasks.message import TASK_NAME

#: The header of such a stand-in: how long the message was.
NUM_BYTES = "herd_num_bytes"

_TASK = re.compile(rb'"task": ?"%s"' % re.escape(TASK_NAME.encode()))
_ID = re.compile(rb'"id": ?"([\w.:-]{1,128})"')
_NO_BODY = base64.b64encode(b"[[], {}, {}]").decode()


def stand_in(raw: bytes, queue: str) -> bytes | None:
    """A short message of the same job; None if the long one names no job of ours."""
    job_id = _ID.search(raw)
    if job_id is None or _TASK.search(raw) is None:
        return None
    message = {
        "properties": {
            "delivery_tag": str(uuid4()),
            "delivery_info": {"exchange": "", "routing_key": queue},
            "body_encoding": "base64",
        },
        "headers": {"task": TASK_NAME, "id": job_id[1].decode(), NUM_BYTES: len(raw)},
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "body": _NO_BODY,
    }
    return json.dumps(message).encode()
