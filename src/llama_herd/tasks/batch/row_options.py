"""Default options for the rows of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_herd.tasks.client.batch.row_feed import BULK
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import Settings


@dataclass(frozen=True)
class RowOptions:
    """Options for every row that does not set its own; `model` overrides the rows' own.

    seed: a row's seed derives from it and the row's line, the same in each run; without it, from the run.
    """

    model: str | None = None
    system: str | None = None
    is_chat: bool = False
    priority: int = BULK["priority"]
    seed: int | None = None
    response_format: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def check(self, settings: Settings) -> None:
        """Raise InvalidJob if no row could run with these options."""
        own = {
            "priority": self.priority,
            "model": self.model,
            "response_format": self.response_format,
            "sampling": {"seed": self.seed, **self.sampling},
        }
        GenerationJob.parse({"prompt": "any", **own}, settings)
