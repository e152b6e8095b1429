"""Messages of the control channel: they tell workers which job to end."""

import json
from typing import Literal

from pydantic import BaseModel, ValidationError

#: `expired`: the message has expired in the queue. This does not end a running job.
CancelReason = Literal["cancelled", "revoked", "deadline", "expired"]


class Notice(BaseModel):
    """Which job to end, and why."""

    job: str
    cancel: CancelReason


def notice_text(job_id: str, reason: CancelReason) -> str:
    """The notice as a message of the control channel."""
    return json.dumps({"v": 1, "job": job_id, "cancel": reason})


def read_notice(message: bytes) -> Notice | None:
    """Parse a message of the control channel. None if it is no notice: every producer may publish there."""
    try:
        return Notice.model_validate_json(message)
    except ValidationError:
        return None
