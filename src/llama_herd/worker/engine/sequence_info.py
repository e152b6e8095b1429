"""SequenceInfo: the facts about a sequence that never change, which any thread may read."""

from dataclasses import dataclass
from typing import Literal

#: Why a sequence is ended from outside. A dropped one ends without an output: its job is another worker's.
Abort = Literal["cancelled", "deadline", "dropped"]


@dataclass(frozen=True, eq=False, slots=True)
class SequenceInfo:
    """Stands for one sequence outside the engine. Each attempt at an output has another one."""

    job_id: str
    tenant: str = ""
    choice: int = 0
    seed: int = 0
    num_prompt_tokens: int = 0

    @property
    def name(self) -> str:
        """A name that no other sequence in the engine has: a tenant contains no /, and an id no #."""
        return f"{self.tenant}/{self.job_id}#{self.choice}"
