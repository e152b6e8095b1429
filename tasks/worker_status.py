"""What a worker says of itself once a second, for `herd status` and whoever else wants to know."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

#: Only a ready worker takes jobs and runs them.
State = Literal["starting", "ready", "stalled", "silent", "stuck", "stopping"]

#: What is wrong with a worker in one of the other states, and what comes of it.
TROUBLE: Mapping[str, str] = {
    "starting": "has not asked for messages yet",
    "stalled": "its engine stands still; others take its jobs over",
    "silent": "asks for no messages, though some wait; it ends itself soon",
    "stuck": "hands on no events or results, though Redis takes them; it ends itself soon",
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
    running: int = 0
    waiting: int = 0
    steps: int = 0
    kv_cache_tokens: int = 0
    kv_cache_usage: float = 0.0
    prefix_hit_rate: float = 0.0
    #: Tokens of prompts that were found in the prefix cache since the worker's start.
    prefix_cache_hits: int = 0
    #: When it said so, by the clock of Redis; the ledger fills it in.
    beat_ms: int = 0
