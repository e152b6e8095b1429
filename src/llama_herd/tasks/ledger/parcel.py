"""A new job as SUBMIT_MANY takes it."""

from dataclasses import dataclass

from llama_herd.tasks.ledger.redis_call import Argument


@dataclass(frozen=True, slots=True)
class Parcel:
    """A new job as SUBMIT_MANY takes it. num_bytes: how long its body and its message are as they travel.

    joined: keys that it may have in common with other jobs.
    """

    keys: tuple[str, str]
    joined: tuple[str, ...]
    args: tuple[Argument, ...]
    num_bytes: int
