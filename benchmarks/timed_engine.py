"""An engine without a queue, and when its tokens came."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Self

from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import Finished, NewTokens, StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings


class Step(NamedTuple):
    """A step that drew tokens, when they were handed on."""

    end_s: float
    num_tokens: int


@dataclass
class Trace:
    """Steps in order, and the times and ids of each job's tokens, on the clock of `perf_counter`."""

    started_s: float = field(default_factory=perf_counter)
    steps: list[Step] = field(default_factory=list)
    arrived_s: dict[str, float] = field(default_factory=dict)
    token_s: dict[str, list[float]] = field(default_factory=dict)
    ids: dict[str, list[int]] = field(default_factory=dict)

    def note(self, outputs: Sequence[StepOutput]) -> None:
        """What an engine's sink does. Raises RuntimeError for a job that ends by an error."""
        now_s, num_tokens = perf_counter(), 0
        for output in outputs:
            job_id = output.sequence.job_id
            if isinstance(output, Finished) and output.error is not None:
                raise RuntimeError(f"{job_id}: {output.error.message}")
            if isinstance(output, NewTokens):
                num_tokens += len(output.tokens)
                self.token_s.setdefault(job_id, []).append(now_s)
                self.ids.setdefault(job_id, []).extend(token.token_id for token in output.tokens)
        if num_tokens:
            self.steps.append(Step(now_s, num_tokens))

    @property
    def num_tokens(self) -> int:
        return sum(step.num_tokens for step in self.steps)

    @property
    def wall_s(self) -> float:
        return self.steps[-1].end_s - self.started_s

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s

    @property
    def all_first_tokens_s(self) -> float:
        """From the start until every job had its first token."""
        return max(times[0] for times in self.token_s.values()) - self.started_s

    def step_s(self, num_rows: int) -> float:
        """The median time between two steps in which so many rows decoded and nothing else was done."""
        full = [step.end_s for step in self.steps if step.num_tokens == num_rows]
        return median(later - earlier for earlier, later in pairwise(full))

    @property
    def ttft_s(self) -> list[float]:
        """Times to the first token of all jobs."""
        return [times[0] - self.arrived_s[job_id] for job_id, times in self.token_s.items()]

    def itl_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Gaps of all streams that end between two times."""
        gaps = [gap for times in self.token_s.values() for gap in pairwise(times)]
        return [after - before for before, after in gaps if since_s < after <= until_s]


class TimedEngine:
    """Gets one load after the other: what a device has captured for one it has for the next."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings) -> None:
        self.trace = Trace()  # of the load that it has now
        self.model = model
        self._settings = settings
        self.engine = model.engine(settings, lambda outputs: self.trace.note(outputs))

    @classmethod
    def load(cls, **fields: Any) -> Self:
        settings = WorkerSettings.read(**fields)
        return cls(LoadedModel.load(settings, "cpu"), settings)

    def other(self, **changes: Any) -> Self:
        """Another engine of the same model."""
        return type(self)(self.model, self._settings.model_copy(update=changes))

    def begin(self) -> Trace:
        self.trace = Trace()
        return self.trace

    def submit(
        self, job_id: str, prompt: str | Sequence[int], sampling: SamplingParams, **fields: Any
    ) -> None:
        asked = {"prompt": prompt} if isinstance(prompt, str) else {"prompt_ids": tuple(prompt)}
        self.submit_job(job_id, GenerationJob.model_validate({**asked, **fields, "sampling": sampling}))

    def submit_job(self, job_id: str, job: Job) -> None:
        found = self.model.maker.sequences(job_id, job, now_ms=0)
        self.trace.arrived_s[job_id] = perf_counter()
        self.engine.submit(*found)

    def step(self) -> float:
        """How long it took."""
        started_s = perf_counter()
        self.engine.step()
        return perf_counter() - started_s

    def run(self) -> Trace:
        """Step all that was submitted to its end."""
        while self.engine.has_work:
            self.engine.step()
        return self.trace

    def fill(self) -> None:
        """Step until all rows decode."""
        scheduler = self.engine.scheduler
        while scheduler.waiting or any(one.num_uncached > 1 for one in scheduler.running):
            self.engine.step()

    def drop(self) -> None:
        """End all that runs."""
        self.engine.abort([one.info for one in self.engine.scheduler.running], "dropped")
        self.engine.step()
