"""A worker's report, once a second, for `herd status` and other readers."""

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

#: Only a ready worker takes jobs and runs them.
State = Literal["loading", "starting", "ready", "stalled", "silent", "stuck", "spoilt", "stopping"]

#: Each other state: what is wrong with the worker, and what follows.
TROUBLE: Mapping[str, str] = {
    "loading": "is loading its model onto the device; a large model takes minutes",
    "starting": "has not asked for messages yet",
    "stalled": "its engine stands still; if that lasts, other workers take over its jobs",
    "silent": "does not ask for messages, although some wait; it will exit soon",
    "stuck": "sends no events or results, although Redis accepts them; it will exit soon",
    "spoilt": "reads no queue: the key of each one holds something else than a list",
    "stopping": "takes no more jobs",
}


class WorkerStatus(BaseModel):
    """A worker's last report. Unknown fields of other versions are ignored."""

    model_config = ConfigDict(frozen=True)

    name: str
    #: One of `State`; other versions may have others.
    state: str
    model: str
    device: str
    slots: int
    #: Share of the model's layers that is on the device.
    loaded_percent: int = 100
    running: int = 0
    waiting: int = 0
    steps: int = 0
    kv_cache_tokens: int = 0
    kv_cache_usage: float = 0.0
    prefix_hit_rate: float = 0.0
    #: Prompt tokens found in the prefix cache since the worker started.
    prefix_cache_hits: int = 0
    #: Of the tenant's jobs here: tokens a second within the last seconds, the median time to the first token
    #: of those that ended within the last minute (0: none did), and how many have ended and failed.
    tokens_per_s: float = 0.0
    ttft_s: float = 0.0
    num_ended: int = 0
    num_failed: int = 0
    #: The tenant's queue if the worker does not read it, because `spoilt_key` holds a `spoilt_type`, not a
    #: list. Empty: the worker reads it. `spoilt_type` is empty if the worker may not ask for the type. A
    #: report never names the queues of other tenants.
    left_out: str = ""
    spoilt_key: str = ""
    spoilt_type: str = ""
    #: Time of the report by the clock of Redis; the ledger fills it in.
    beat_ms: int = 0

    @property
    def shown_state(self) -> str:
        """The state, with the progress if the worker is loading its model."""
        return f"loading {self.loaded_percent}%" if self.state == "loading" else self.state

    @property
    def complaint(self) -> str:
        """Which queue is left out, why, and the fix; empty if no queue is."""
        if not self.left_out:
            return ""
        held = f"a {self.spoilt_type}, not a list" if self.spoilt_type else "not a list"
        key = json.dumps(self.spoilt_key).replace("\\u00", "\\x")  # as redis-cli takes it
        return f"{self.left_out} is left out: its key {key} is {held}. Fix: delete or rename it"
