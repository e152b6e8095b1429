"""What other threads know of a sequence: what never changes of it."""

from dataclasses import dataclass
from typing import Literal

#: Why a sequence ends from outside; one that is dropped ends without a word, since its job lives elsewhere.
Abort = Literal["cancelled", "deadline", "dropped"]


@dataclass(frozen=True, eq=False, slots=True)
class SequenceInfo:
    """Stands for one sequence outside the engine. Another attempt at the same output is another one."""

    job_id: str
    tenant: str = ""
    choice: int = 0
    seed: int = 0
    num_prompt_tokens: int = 0

    @property
    def name(self) -> str:
        """What no other sequence of the engine is called; a tenant has no /, an id no #."""
        return f"{self.tenant}/{self.job_id}#{self.choice}"
