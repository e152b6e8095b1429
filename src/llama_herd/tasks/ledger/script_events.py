"""Events that scripts write: those that EMIT takes whole, and final ones that they complete themselves."""

import json
from typing import Literal, NamedTuple, Self

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.protocol.events import End, Event, Failure, FinishReason, Token

FinalState = Literal["done", "failed", "cancelled"]


class EmitEntry(NamedTuple):
    """An event as EMIT takes it. event: its JSON. i: number of tokens recorded before it."""

    job_id: str
    epoch: int
    seq: int
    i: int
    num_ids: int
    kind: Literal["started", "token", "end"]
    event: str
    state: FinalState | Literal[""] = ""

    @classmethod
    def from_event(cls, event: Event, i: int) -> Self:
        """The entry of `event`, if `i` tokens are recorded before it."""
        num_ids = len(event.ids) if isinstance(event, Token) else 0
        state = final_state(event) if isinstance(event, End) else ""
        return cls(event.job, event.epoch, event.seq, i, num_ids, event.type, event.to_json(), state)


def final_state(end: End) -> FinalState:
    """The state of the job's record after this `end`."""
    match end.finish_reason:
        case "stop" | "length":
            return "done"
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"


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
