"""A run of an engine, and what it says of each job."""

from collections import defaultdict
from copy import copy
from typing import Any

from llama_herd.model.cache import Cache
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Admitted, Finished, NewTokens, SequenceInfo, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.model.page_laws import check_prefixes

#: A prompt of several pages.
PREFIX = "once upon a time in a village far away " * 5


class Collector(list[StepOutput]):
    """A sink that can be asked about one job."""

    def __call__(self, outputs: list[StepOutput]) -> None:
        self.extend(outputs)

    @property
    def ids(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for output in self:
            if isinstance(output, NewTokens):
                found[output.sequence.job_id] += [token.token_id for token in output.tokens]
        return found

    @property
    def text(self) -> str:
        return "".join(output.text for output in self if isinstance(output, NewTokens))

    @property
    def errors(self) -> list[str]:
        """Their codes."""
        ends = [output for output in self if isinstance(output, Finished)]
        return [end.error.code for end in ends if end.error is not None]

    @property
    def admitted(self) -> list[SequenceInfo]:
        return [output.sequence for output in self if isinstance(output, Admitted)]

    @property
    def ends(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for output in self:
            if isinstance(output, Finished):
                found[output.sequence.job_id].append(output.finish_reason)
        return found


def with_empty_cache(model: LoadedModel, *, consecutive: bool | None = None) -> LoadedModel:
    """The same weights beside a cache of their own, as large as the model's."""
    again, was = copy(model), model.cache
    again.cache = Cache(
        model.llama.config,
        was.pages.num_pages,
        was.device,
        was.storage.dtype,
        max_length=was.max_length,
        consecutive=consecutive,
    )
    return again


def sequence(model: LoadedModel, job_id: str, prompt: str = "a tale", **sampling: Any) -> Sequence:
    params = SamplingParams.model_validate({"temperature": 0.0, "max_tokens": 12, **sampling})
    return model.maker.sequences(job_id, GenerationJob(prompt=prompt, sampling=params), now_ms=0)[0]


def run(model: LoadedModel, settings: WorkerSettings, sequences: list[Sequence]) -> Collector:
    sink = Collector()
    engine = model.engine(settings, sink)
    for one in sequences:
        engine.submit(one)
    finish(engine)
    return sink


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        check_prefixes(engine.prefixes)
    assert engine.prefixes.pages.num_held == 0
    assert not engine._sequences, "it knows nothing of those that have ended"
