"""Options of a batch that hold for each of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_herd.tasks.client.batch.row_feed import BULK
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import Settings

#: Most rows that share a job, unless a person says otherwise.
TEXTS_PER_JOB = 64


@dataclass(frozen=True)
class EmbedOptions:
    """What becomes of rows that are texts: fields of their jobs, and how many rows may share one."""

    dimensions: int | None = None
    prompt_name: str | None = None
    truncate: str | None = None
    texts_per_job: int = TEXTS_PER_JOB

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a job that are given."""
        names = ("dimensions", "prompt_name", "truncate")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


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
    embed: EmbedOptions | None = None

    def check(self, settings: Settings) -> None:
        """Raise InvalidJob if no row could run with these options."""
        if self.embed is not None:
            EmbeddingJob.parse({"texts": ["any"], **self.text_fields}, settings)
            return
        own = {
            "priority": self.priority,
            "model": self.model,
            "response_format": self.response_format,
            "sampling": {"seed": self.seed, **self.sampling},
        }
        GenerationJob.parse({"prompt": "any", **own}, settings)

    @property
    def text_fields(self) -> dict[str, Any]:
        """The fields of the job of each text."""
        own = {**BULK, "priority": self.priority, "model": self.model}
        return own if self.embed is None else own | self.embed.fields
