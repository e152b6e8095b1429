"""A new job as SUBMIT_MANY takes it."""

from dataclasses import dataclass

from llama_herd.tasks.ledger.redis_call import Argument


@dataclass(frozen=True, slots=True)
class Parcel:
    """A new job as SUBMIT_MANY takes it. num_bytes: how long its body and its message are as they travel."""

    keys: tuple[str, str]
    args: tuple[Argument, ...]
    num_bytes: int
