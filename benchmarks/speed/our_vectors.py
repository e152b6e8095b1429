"""Our engine as it embeds, without a queue: `our_vectors.py FILE THREADS ROW_TOKENS CACHE_TOKENS`."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from benchmarks.speed.child import Room, serve_texts
from benchmarks.timed_engine import TimedEngine
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.text_job import ID_BYTES, lots_of


class OurVectors:
    """A model as a worker loads it, with its default settings but for threads and room."""

    def __init__(self, room: Room) -> None:
        self._engine = TimedEngine.load(
            model=room.path, threads=room.threads, kv_cache_tokens=room.cache_tokens
        )
        self._engine.model.llama.settle()  # as a worker does before its first job
        plan = self._engine.model.plan
        self.facts: dict[str, Any] = {"dtype": plan.dtype, "form": plan.form_note}

    def texts_s(self, texts: Sequence[list[int]]) -> float:
        started_s = perf_counter()
        for number, lot in enumerate(lots_of(texts, 0, ID_BYTES * sum(map(len, texts)))):
            job = EmbeddingJob(text_ids=tuple(map(tuple, lot)))
            self._engine.submit_job(f"{number} at {started_s}", job)
        self._engine.run()
        return perf_counter() - started_s


if __name__ == "__main__":
    serve_texts(OurVectors)
