"""In place of the model: the scripted engine, and words that depend on nothing but a job's seed.

With it a worker of a thousand rows runs on a small machine. Everything else is as in any worker.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

from llama_herd.tasks.protocol.job import seed_of
from llama_herd.testing.answer import Answer
from llama_herd.testing.script import AskedJob
from llama_herd.testing.scripted_pool import ScriptedPool
from llama_herd.testing.vocabulary import Vocabulary
from llama_herd.worker.pool import EnginePool


def words(seed: int, num: int) -> str:
    """So many words of one id each."""
    random = Random(seed)
    return "".join(f" {random.randrange(1 << 16):04x}" for _ in range(num))


def answer(asked: AskedJob) -> Answer:
    sampling = asked.job.sampling
    return Answer.of(
        words(seed_of(asked.id) if sampling.seed is None else sampling.seed, sampling.max_tokens)
    )


def serve_no_model() -> None:
    """Let this worker's pool run the scripted engine."""
    EnginePool.ask = staticmethod(answer)
    EnginePool.start_service = ScriptedPool.start_service  # type: ignore[method-assign]


class StandInReference:
    """The outputs of jobs that a stand-in runs and nothing disturbs."""

    def ids(self, job_id: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
        sampling = {"seed": seed_of(job_id), **fields["sampling"]}
        return tuple(Vocabulary().encode(words(sampling["seed"], sampling["max_tokens"])))
