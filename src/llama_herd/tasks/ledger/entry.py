"""An event as EMIT takes it."""

from dataclasses import dataclass
from typing import Literal, Self

from llama_herd.tasks.events import End, Event, Token

FinalState = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Entry:
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
    def of(cls, event: Event, i: int) -> Self:
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
