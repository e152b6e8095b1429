"""An engine of one token budget under three loads, and how long its streams wait."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter, sleep
from typing import Any

from benchmarks.harness import percentiles_ms
from benchmarks.jobs import random_prompt
from benchmarks.timed_engine import TimedEngine
from llama_herd.tasks.sampling import SamplingParams

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


class LoadedEngine:
    """An engine of one budget, and the load that it gets."""

    def __init__(self, model: TimedEngine, load: Load, budget: int) -> None:
        self._load = load
        self._engine = model.other(prefill_tokens=budget)
        self._trace = self._engine.begin()
        self._random = Random(SEED)
        self._decoding_s: list[float] = []  # steps that only decode

    def beside(self) -> Run:
        """A long prompt joins when all other slots stream; what comes before its first token counts."""
        load, num_streams = self._load, self._load.slots - 1
        for number in range(num_streams):
            self._submit(f"short-{number}", load.short_prompt, max_tokens=load.long_prompt)
        self._step_until(num_streams)
        self._only_decode()
        self._submit("long", load.long_prompt, max_tokens=1)
        self._step_until(num_streams + 1)
        joined_s, first_s = self._trace.arrived_s["long"], self._trace.token_s["long"][0]
        self._only_decode()
        self._engine.drop()
        gaps_s = self._trace.itl_s(since_s=joined_s, until_s=first_s)
        return {"ttft long ms": round(1000 * (first_s - joined_s)), **self._gaps(gaps_s)}

    def poisson(self) -> Run:
        """Jobs come at random; each is submitted between two steps, as soon as it is due."""
        started_s, due = perf_counter(), deque(self._arrivals())
        while due or self._engine.engine.has_work:
            while due and due[0][0] <= perf_counter() - started_s:
                due_s, job_id, num_prompt = due.popleft()
                self._submit(job_id, num_prompt, self._load.max_tokens)
                self._trace.arrived_s[job_id] = started_s + due_s
            if self._engine.engine.has_work:
                self._step()
            else:
                sleep(max(0.0, due[0][0] - (perf_counter() - started_s)))
        return {
            "ttft short ms": slashed(percentiles_ms(self._trace.ttft_s("short"))),
            "ttft long ms": slashed(percentiles_ms(self._trace.ttft_s("long"))),
            **self._gaps(self._trace.itl_s()),
            "tokens per s": self._trace.num_tokens / (perf_counter() - started_s),
        }

    def saturated(self, priority: int = 0) -> Run:
        """All jobs come at once, after a warm-up of one as in a worker; lengths of outputs differ."""
        load = self._load
        self._submit("warm-up", load.short_prompt, max_tokens=8)
        self._engine.run()
        trace = self._trace = self._engine.begin()
        for number in range(load.num_jobs):
            num_tokens = self._random.randint(load.max_tokens // 2, load.max_tokens * 3 // 2)
            self._submit(f"short-{number}", load.short_prompt, num_tokens, priority)
        num_steps = 0
        while self._engine.engine.has_work:
            self._engine.step()
            num_steps += 1
        return {
            "tokens a second": trace.tokens_per_s,
            "rows that decode": trace.num_tokens / num_steps,
            **{f"gap {name} ms": ms for name, ms in percentiles_ms(trace.itl_s()).items()},
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
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        prompt = random_prompt(self._random, num_prompt)
        self._engine.submit(job_id, prompt, sampling, priority=priority)

    def _step(self) -> None:
        only_decodes = self._engine.only_decodes
        took_s = self._engine.step()
        if only_decodes:
            self._decoding_s.append(took_s)

    def _step_until(self, num_streams: int) -> None:
        while len(self._trace.token_s) < num_streams:
            self._step()

    def _only_decode(self) -> None:
        """Before and after a long prompt, since a step takes longer as the streams grow."""
        for _ in range(20):
            self._step()

    def _gaps(self, itl_s: list[float]) -> Run:
        """Times between tokens, and the median of the steps that only decode."""
        itl_ms, step_ms = percentiles_ms(itl_s), 1000 * median(self._decoding_s)
        return {
            "itl ms": slashed(itl_ms),
            "step ms": step_ms,
            "itl p99 over step": round(itl_ms["p99"] / step_ms, 2),
        }


def slashed(percentiles: dict[str, float]) -> str:
    return " / ".join(f"{ms:,.0f}" for ms in percentiles.values())
