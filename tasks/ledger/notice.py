"""What workers hear by the control channel of a job that is to be ended."""

import json
from typing import Literal

from pydantic import BaseModel, ValidationError

#: `expired`: a message came too late, which ends no job that runs.
CancelReason = Literal["cancelled", "revoked", "deadline", "expired"]


class Notice(BaseModel):
    """The job, and why it is to end."""

    job: str
    cancel: CancelReason


def notice_text(job_id: str, reason: CancelReason) -> str:
    """The message that says so."""
    return json.dumps({"v": 1, "job": job_id, "cancel": reason})


def read_notice(message: bytes) -> Notice | None:
    """The notice in a message of the control channel; None if it is none: every producer may write there."""
    try:
        return Notice.model_validate_json(message)
    except ValidationError:
        return None
