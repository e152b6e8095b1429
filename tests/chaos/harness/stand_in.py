"""Replaces the model: ids depend only on a job's seed and their position, and cost next to nothing.

With it a worker of a thousand rows runs on a small machine. Everything else is as in any worker.
"""

from collections.abc import Mapping, Sequence as Rows
from typing import Any

from llama_herd.tasks.protocol.job import seed_of
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.runner import Reading
from llama_herd.worker.engine.sampling.noise import hash_prefix
from llama_herd.worker.engine.scheduler import Row

#: The bytes of a to z in the vocabulary of a Llama.
FIRST_ID, NUM_IDS = 3 + ord("a"), 26


def token_id(seed: int, choice: int, position: int) -> int:
    return FIRST_ID + hash_prefix(seed, choice, position) % NUM_IDS


def run_without_model(_: ModelRunner, rows: Rows[Row]) -> list[Reading]:
    """Replaces `ModelRunner.run`: draw the next token of each row whose prompt is complete."""
    return [Reading(row, [], _drawn(row) if row.is_complete else None) for row in rows]


def _drawn(row: Row) -> SampledToken:
    one = row.sequence
    return SampledToken(token_id(one.seed, one.choice, len(one.ids)))


class StandInReference:
    """The outputs of jobs that a stand-in runs and nothing disturbs."""

    def ids(self, job_id: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
        sampling = {"seed": seed_of(job_id), **fields["sampling"]}
        return tuple(token_id(sampling["seed"], 0, position) for position in range(sampling["max_tokens"]))
