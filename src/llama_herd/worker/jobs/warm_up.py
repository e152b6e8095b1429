"""Runs the engine once before the first job: torch and the tokenizer postpone much work to first use."""

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from llama_herd.errors import GenerationError
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.shape.purpose import Embeds, Ranks
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import Finished, JobEngine, SequenceInfo, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.sequence_maker import SequenceMaker

log = structlog.get_logger(__name__)

#: The tenant of these sequences: no real tenant has this name.
NOBODY = ""

TEXT = "Once upon a time there was a llama who lived by a river. " * 8

#: Prompt and output together fill no page, so the prefix cache keeps and counts nothing.
NUM_PROMPT_TOKENS = PAGE_TOKENS // 2

COMMON: dict[str, Any] = {"ignore_eos": True, "seed": 0, "truncate_prompt_tokens": NUM_PROMPT_TOKENS}
#: One sequence takes the likeliest tokens. The other one samples, and goes on alone after the first.
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "max_tokens": 4},
    {"temperature": 0.8, "top_p": 0.9, "max_tokens": 8},
)

#: How often to check that the engine still lives.
POLL_S = 1.0


class WarmUp:
    """Two throw-away sequences that go the way of every job: tokenizer, admission, prefill, decode, draw.

    They run on the engine's own thread, since libraries keep thread pools and handles per thread. A model
    without room for them takes its first job cold.
    """

    def __init__(self, maker: SequenceMaker | None) -> None:
        """None: there are no sequences, and nothing is run."""
        self._sequences: list[Sequence] = []
        self._have_ended = threading.Event()
        with suppress(GenerationError):
            for number, sampling in enumerate(SAMPLINGS):
                if maker is not None:
                    self._sequences += _made(maker, number, sampling)
        self._left: set[SequenceInfo] = {sequence.info for sequence in self._sequences}

    def run(self, engine: JobEngine) -> None:
        """Run the sequences as jobs would, and return when all have ended."""
        for sequence in self._sequences:
            engine.submit(sequence)
        while self._left and engine.is_alive():
            self._have_ended.wait(POLL_S)

    def take(self, outputs: Iterable[StepOutput]) -> None:
        """Take the engine's outputs of these sequences."""
        for output in outputs:
            if isinstance(output, Finished):
                self._left.discard(output.sequence)
                if output.error is not None:
                    log.warning("warm-up failed, jobs may fail too", error=output.error.message)
        if not self._left:
            self._have_ended.set()


def _made(maker: SequenceMaker, number: int, sampling: Mapping[str, Any]) -> list[Sequence]:
    job: Job = GenerationJob(prompt=TEXT, sampling=SamplingParams.model_validate({**COMMON, **sampling}))
    if isinstance(maker.texts.purpose, Embeds):
        job = EmbeddingJob(texts=(TEXT,), truncate="end")
    elif isinstance(maker.texts.purpose, Ranks):
        job = RankingJob(query="Once", documents=(TEXT[:NUM_PROMPT_TOKENS],))
    made = maker.sequences(f"warm-up-{number}", job, now_ms=0)
    return [replace(sequence, tenant=NOBODY) for sequence in made]
