"""A worker's engine of a model file, without a queue: jobs with texts go in, their numbers come out."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.worker.engine.interface import NewVector
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import Collector, finish, with_empty_cache

#: Of a cache for all texts of a test.
SETTINGS = {"slots": 8, "kv_cache_tokens": 4096, "threads": 1}


class TextEngine(AbstractContextManager["TextEngine"]):
    """The model that a worker would load, its engine, and the outputs of the last job.

        with TextEngine(path) as engine:
            engine.vectors(["a llama", "an alpaca"])  # (2, W)

    step_tokens: most tokens of a step. consecutive: whether a text's pages lie side by side.
    """

    def __init__(
        self, path: Path, *, step_tokens: int = 1000, consecutive: bool = True, **settings: Any
    ) -> None:
        self.settings = WorkerSettings.model_validate({**SETTINGS, "model": path, **settings})
        self.model = LoadedModel.load(self.settings, "cpu")
        if not consecutive:
            self.model = with_empty_cache(self.model, consecutive=False)
        self.outputs = Collector()
        self.engine = self.model.engine(self.settings, self.outputs)
        self.step_tokens = step_tokens

    def __exit__(self, *_: object) -> None:
        self.model.close()

    @property
    def prefixes(self) -> PrefixCache:
        return self.model.cache.prefixes

    @property
    def num_kept(self) -> int:
        """Pages that are kept for others to come."""
        pages = self.prefixes.pages
        return pages.num_pages - pages.num_free

    def sequences(self, job: Job, job_id: str = "texts") -> list[Sequence]:
        return self.model.maker.sequences(job_id, job, now_ms=0)

    def run(self, *sequences: Sequence) -> None:
        """Run them to their ends, and look after each step whether its pages are accounted for."""
        self.outputs.clear()
        self.engine.scheduler.prefill.alone = self.step_tokens
        self.engine.submit(*sequences)
        finish(self.engine)

    def floats(self, job: Job) -> Tensor:
        """The numbers (N, W) of a job's texts, in their order."""
        sequences = self.sequences(job)
        self.run(*sequences)
        return vectors_in(self.outputs)

    def vectors(self, texts: list[str], **fields: Any) -> Tensor:
        return self.floats(EmbeddingJob(texts=tuple(texts), **fields))

    def vectors_of_ids(self, texts: list[list[int]], **fields: Any) -> Tensor:
        return self.floats(EmbeddingJob(text_ids=tuple(map(tuple, texts)), **fields))

    def ranks(self, query: str, documents: list[str]) -> Tensor:
        """The logits (N,) of documents."""
        return self.floats(RankingJob(query=query, documents=tuple(documents)))[:, 0]


def vectors_in(outputs: Collector) -> Tensor:
    """The vectors (N, W) that outputs of one job bring, in the order of its texts."""
    raw = {one.sequence.choice: one.vector for one in outputs if isinstance(one, NewVector)}
    assert sorted(raw) == [*range(len(raw))]
    return torch.stack([torch.frombuffer(bytearray(raw[at]), dtype=torch.float32) for at in range(len(raw))])
