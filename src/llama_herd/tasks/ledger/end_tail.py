"""Final events that scripts write: what is known of them before Redis fills in the rest."""

import json

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.events import Failure, FinishReason

#: The end of a job of which Redis has lost a part.
LOST = Failure(
    code=ErrorCode.UNREADABLE,
    message="Redis has lost the record or the events of this job: it evicts keys, or somebody has deleted "
    "them. Fix: redis-cli CONFIG SET maxmemory-policy noeviction, then submit the job again",
)


def end_tail(finish_reason: FinishReason, error: Failure | None = None) -> str:
    """The rest of a final event's JSON, after the fields that a script fills in."""
    tail = {
        "final": True,
        "finish_reason": finish_reason,
        "usage": None,
        "text_sha256": None,
        "error": error and error.model_dump(),
        "timings": None,
    }
    return json.dumps(tail, separators=(",", ":"))[1:]
