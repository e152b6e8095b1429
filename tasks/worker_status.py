"""What a worker says of itself once a second, for `herd status` and whoever else wants to know."""

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

#: Only a ready worker takes jobs and runs them.
State = Literal["loading", "starting", "ready", "stalled", "silent", "stuck", "spoilt", "stopping"]

#: What is wrong with a worker in one of the other states, and what comes of it.
TROUBLE: Mapping[str, str] = {
    "loading": "lays its model out on the device, which takes a large one minutes",
    "starting": "has not asked for messages yet",
    "stalled": "its engine stands still; others take its jobs over if that lasts",
    "silent": "asks for no messages, though some wait; it ends itself soon",
    "stuck": "hands on no events or results, though Redis takes them; it ends itself soon",
    "spoilt": "reads no queue, since in the place of each something else lies",
    "stopping": "takes no more jobs",
}


class WorkerStatus(BaseModel):
    """A worker as it last described itself. Unknown fields of other versions are left out."""

    model_config = ConfigDict(frozen=True)

    name: str
    #: One of `State`; other versions may have more.
    state: str
    model: str
    device: str
    slots: int
    #: How much of the model is on the device, in layers.
    loaded_percent: int = 100
    running: int = 0
    waiting: int = 0
    steps: int = 0
    kv_cache_tokens: int = 0
    kv_cache_usage: float = 0.0
    prefix_hit_rate: float = 0.0
    #: Tokens of prompts that were found in the prefix cache since the worker's start.
    prefix_cache_hits: int = 0
    #: The tenant's queue if the worker leaves it out, since this key of it holds another type than a list.
    #: Empty: it does not, or may not ask for the type. Of other tenants' queues it says nothing.
    left_out: str = ""
    spoilt_key: str = ""
    spoilt_type: str = ""
    #: When it said so, by the clock of Redis; the ledger fills it in.
    beat_ms: int = 0

    @property
    def shown_state(self) -> str:
        """The state, and of a worker that loads its model how far it is."""
        return f"loading {self.loaded_percent}%" if self.state == "loading" else self.state

    @property
    def complaint(self) -> str:
        """Which queue is left out, why, and the fix; empty if none is."""
        if not self.left_out:
            return ""
        held = f"a {self.spoilt_type}, not a list" if self.spoilt_type else "not a list"
        key = json.dumps(self.spoilt_key).replace("\\u00", "\\x")  # as redis-cli takes it
        return f"{self.left_out} is left out: its key {key} is {held}. Fix: delete or rename it"
