"""A new job as SUBMIT_MANY takes it."""

from dataclasses import dataclass

from llama_herd.tasks.ledger.redis_call import Argument


@dataclass(frozen=True, slots=True)
class Parcel:
    """A new job as SUBMIT_MANY takes it. Its texts are bytes where they may be long."""

    keys: tuple[str, str]
    args: tuple[Argument, ...]

    @property
    def num_bytes(self) -> int:
        """Length of the job and its message, as they travel."""
        return sum(len(arg) for arg in self.args if isinstance(arg, str | bytes))
