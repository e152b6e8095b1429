"""What holds for the rows of a batch that say nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_herd.tasks.client.batch.feed import BULK
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.settings import Settings


@dataclass(frozen=True)
class RowOptions:
    """What holds for every row that says nothing else; `model` holds for those that do, too.

    seed: rows get theirs from it and their line, the same in each run; without one, from the run.
    """

    model: str | None = None
    system: str | None = None
    is_chat: bool = False
    priority: int = BULK["priority"]
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def check(self, settings: Settings) -> None:
        """Raise InvalidJob when no row could be run with them."""
        own = {
            "priority": self.priority,
            "model": self.model,
            "sampling": {"seed": self.seed, **self.sampling},
        }
        GenerationJob.parse({"prompt": "any", **own}, settings)
