"""A run of the engine in this process, and when its tokens came."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter
from typing import NamedTuple

from benchmarks.gpu.scale import DRAWS, Load
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings


class Step(NamedTuple):
    """A step that drew tokens, when they were handed on."""

    end_s: float
    num_tokens: int


@dataclass
class Trace:
    """Steps in order, on the clock of `perf_counter`. `note` is what an engine's sink does."""

    started_s: float = 0.0
    steps: list[Step] = field(default_factory=list)
    first_token_s: dict[str, float] = field(default_factory=dict)
    ids: dict[str, list[int]] = field(default_factory=dict)  # by job

    def note(self, outputs: list[StepOutput]) -> None:
        now = perf_counter()
        num_tokens = sum(len(output.ids) for output in outputs)
        if num_tokens:
            self.steps.append(Step(now, num_tokens))
        for output in outputs:
            if output.error is not None:
                raise RuntimeError(f"{output.sequence.job_id}: {output.error.message}")
            if output.ids:
                self.first_token_s.setdefault(output.sequence.job_id, now)
                self.ids.setdefault(output.sequence.job_id, []).extend(output.ids)

    @property
    def wall_s(self) -> float:
        return self.steps[-1].end_s - self.started_s

    @property
    def all_first_tokens_s(self) -> float:
        """From the start until every request had its first token."""
        return max(self.first_token_s.values()) - self.started_s

    @property
    def tokens_per_s(self) -> float:
        return sum(step.num_tokens for step in self.steps) / self.wall_s

    def step_s(self, num_rows: int) -> float:
        """The median time between two steps in which so many rows decoded and nothing else was done."""
        full = [step.end_s for step in self.steps if step.num_tokens == num_rows]
        return median(later - earlier for earlier, later in pairwise(full))


class TracedEngine:
    """An engine that gets one load after the other: what a card has captured for one it has for the next."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings) -> None:
        self.trace = Trace()  # of the load that it has now
        self._model = model
        self._engine = model.engine(settings, lambda outputs: self.trace.note(outputs))

    def start(self, load: Load, seed: int) -> None:
        """Give it all requests of a load at once."""
        self.trace = Trace()
        self._engine.submit(*sequences(self._model, load, seed))
        self.trace.started_s = perf_counter()

    def step(self) -> None:
        self._engine.step()

    def run(self, load: Load, seed: int) -> Trace:
        """Step all requests of a load to their end."""
        self.start(load, seed)
        while self._engine.has_work:
            self.step()
        return self.trace


def sequences(model: LoadedModel, load: Load, seed: int) -> list[Sequence]:
    """Requests that nothing ends early; no two runs share a prompt."""
    prompts = random_prompts(load, model.tokenizer.vocab_size, seed)
    return [
        model.sequences(
            f"run-{seed}-{index}", GenerationJob(prompt_ids=ids, sampling=sampling(load)), now_ms=0
        )[0]
        for index, ids in enumerate(prompts)
    ]


def sampling(load: Load) -> SamplingParams:
    given = {"max_tokens": load.num_out, "ignore_eos": True, **DRAWS[load.draw]}
    return SamplingParams.model_validate(
        given | {"min_tokens": min(load.num_out, given.get("min_tokens", 0))}
    )


def random_prompts(load: Load, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """One prompt of random ids for each request."""
    chance = Random(seed)
    return [tuple(chance.choices(range(vocab_size), k=load.num_in)) for _ in range(load.num_requests)]
