"""An engine of one token budget under three loads, and how long its streams wait."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter, sleep
from typing import Any

from benchmarks.shapes import PLAIN_IDS
from benchmarks.stopwatch import Stopwatch, percentiles_ms
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

SEED = 1

Run = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """The load: lengths of prompts in tokens, number of jobs, and their rate."""

    slots: int = 32
    long_prompt: int = 4000
    short_prompt: int = 64
    max_tokens: int = 192
    num_jobs: int = 256
    jobs_per_s: float = 8.0
    jobs_per_long: int = 32

    @property
    def context_length(self) -> int:
        return 2 * self.long_prompt + self.max_tokens


class Bench:
    """An engine of one budget, and its stopwatch."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings, load: Load, budget: int) -> None:
        self.watch = Stopwatch()
        self._model = model
        self._load = load
        self._engine = model.engine(settings.model_copy(update={"prefill_tokens": budget}), self.watch)
        self._random = Random(SEED)

    def beside(self) -> Run:
        """A long prompt joins when all other slots stream; what comes before its first token counts."""
        load, num_streams = self._load, self._load.slots - 1
        for number in range(num_streams):
            self._submit(f"short-{number}", load.short_prompt, max_tokens=load.long_prompt)
        while not all(self.watch.token_s.values()):
            self._step()
        self._only_decode()
        self._submit("long", load.long_prompt, max_tokens=1)
        while not self.watch.token_s["long"]:
            self._step()
        joined_s, first_s = self.watch.arrived_s["long"], self.watch.token_s["long"][0]
        self._only_decode()
        self._end_all()
        gaps_s = self.watch.itl_s(since_s=joined_s, until_s=first_s)
        return {"ttft_long_ms": round(1000 * (first_s - joined_s)), **self._gaps(gaps_s)}

    def poisson(self) -> Run:
        """Jobs come at random; each is submitted between two steps, as soon as it is due."""
        started_s, due = perf_counter(), deque(self._arrivals())
        while due or self._engine.has_work:
            while due and due[0][0] <= perf_counter() - started_s:
                due_s, job_id, num_prompt = due.popleft()
                self._submit(job_id, num_prompt, self._load.max_tokens)
                self.watch.arrived_s[job_id] = started_s + due_s
            if self._engine.has_work:
                self._step()
            else:
                sleep(max(0.0, due[0][0] - (perf_counter() - started_s)))
        num_tokens = sum(map(len, self.watch.token_s.values()))
        return {
            "ttft_short_ms": percentiles_ms(self.watch.ttft_s("short")),
            "ttft_long_ms": percentiles_ms(self.watch.ttft_s("long")),
            **self._gaps(self.watch.itl_s()),
            "tokens_per_s": round(num_tokens / (perf_counter() - started_s), 1),
        }

    def saturated(self, priority: int = 0) -> Run:
        """All jobs come at once, after a warm-up of one as in a worker; lengths of outputs differ."""
        load = self._load
        self._submit("warm-up", load.short_prompt, max_tokens=8)
        while self._engine.has_work:
            self._engine.step()
        started_s, num_steps = perf_counter(), 0
        for number in range(load.num_jobs):
            num_tokens = self._random.randint(load.max_tokens // 2, load.max_tokens * 3 // 2)
            self._submit(f"short-{number}", load.short_prompt, num_tokens, priority)
        while self._engine.has_work:
            self._engine.step()
            num_steps += 1
        num_tokens = sum(map(len, self.watch.token_s.values())) - len(self.watch.token_s["warm-up"])
        return {
            "tokens_per_s": round(num_tokens / (perf_counter() - started_s), 1),
            "decoding_rows": round(num_tokens / num_steps, 1),
            "itl_ms": percentiles_ms(self.watch.itl_s(since_s=started_s)),
        }

    def _arrivals(self) -> Iterator[tuple[float, str, int]]:
        """When due, id, prompt tokens: the same for every budget."""
        due_s = 0.0
        for number in range(self._load.num_jobs):
            due_s += self._random.expovariate(self._load.jobs_per_s)
            is_long = number % self._load.jobs_per_long == self._load.jobs_per_long - 1
            num_prompt = self._load.long_prompt if is_long else self._load.short_prompt
            yield due_s, f"{'long' if is_long else 'short'}-{number}", num_prompt

    def _submit(self, job_id: str, num_prompt: int, max_tokens: int, priority: int = 0) -> None:
        ids = tuple(self._random.choices(PLAIN_IDS, k=num_prompt))
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        job = GenerationJob(prompt_ids=ids, sampling=sampling, priority=priority)
        self.watch.start(job_id)
        self._engine.submit(self._model.sequences(job_id, job, now_ms=0)[0])

    def _step(self) -> None:
        scheduler = self._engine.scheduler
        only_decodes = not scheduler.waiting and all(one.num_uncached == 1 for one in scheduler.running)
        started_s = perf_counter()
        self._engine.step()
        if only_decodes:
            self.watch.step_s.append(perf_counter() - started_s)

    def _only_decode(self) -> None:
        """Before and after a long prompt, since a step takes longer as the streams grow."""
        for _ in range(20):
            self._step()

    def _end_all(self) -> None:
        self._engine.abort([one.info for one in self._engine.scheduler.running], "dropped")
        self._engine.step()

    def _gaps(self, itl_s: list[float]) -> Run:
        """Times between tokens, and the median of the steps that only decode."""
        itl_ms, step_ms = percentiles_ms(itl_s), 1000 * median(self.watch.step_s)
        return {
            "itl_ms": itl_ms,
            "step_ms": round(step_ms, 2),
            "itl_p99_over_step": round(itl_ms["p99"] / step_ms, 2),
        }
