"""How long streams wait, by the token budget of prefill: time to first token (TTFT) and between tokens (ITL).

    python -m benchmarks.latency [--json FILE]

The engine alone, on a random model of the bundled one's shape with room for long prompts. Two loads: a long
prompt that joins running streams, where only what comes before its first token counts; and jobs that come at
random (Poisson), every eighth with a long prompt. A step is the median of those that only decode.
"""

import argparse
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.conditions import conditions
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.output import Output
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "num_layers": 4,
    "num_heads": 8,
    "num_kv_heads": 4,
    "ffn_size": 640,
}
SEED = 1
#: Ids that are plain tokens in the random model's vocabulary.
PLAIN_IDS = range(3, 300)


@dataclass(frozen=True)
class Plan:
    """What is measured. The largest budget takes every prompt whole: no chunks."""

    budgets: tuple[int, ...] = (8, 16, 24, 32, 64, 256, 8192)
    slots: int = 32
    long_prompt: int = 4000
    short_prompt: int = 64
    max_tokens: int = 48
    num_jobs: int = 48
    jobs_per_s: float = 1.5
    jobs_per_long: int = 8
    repeats: int = 3  # of the long prompt beside streams


@dataclass
class Stopwatch:
    """A sink: when each job came, when its tokens came, and how long the steps were that only decoded."""

    arrived_s: dict[str, float] = field(default_factory=dict)
    token_s: dict[str, list[float]] = field(default_factory=dict)
    step_s: list[float] = field(default_factory=list)

    def __call__(self, outputs: list[Output]) -> None:
        now_s = perf_counter()
        for output in outputs:
            if output.ids:
                self.token_s[output.sequence.job_id].append(now_s)

    def ttft_s(self, kind: str) -> list[float]:
        return [
            times[0] - self.arrived_s[job_id]
            for job_id, times in self.token_s.items()
            if job_id.startswith(kind)
        ]

    def itl_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Gaps of all streams that end between two times."""
        return [
            after - before
            for times in self.token_s.values()
            for before, after in pairwise(times)
            if since_s < after <= until_s
        ]


class Bench:
    """An engine of one budget, and its stopwatch."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings, plan: Plan, budget: int) -> None:
        self.watch = Stopwatch()
        self._model = model
        self._plan = plan
        self._engine = model.engine(settings.model_copy(update={"prefill_tokens": budget}), self.watch)
        self._random = Random(SEED)

    def beside(self) -> dict[str, Any]:
        """A long prompt joins when all other slots stream."""
        plan, gaps, ttfts = self._plan, list[float](), list[float]()
        for repeat in range(plan.repeats):
            for number in range(plan.slots - 1):
                self._submit(f"short-{repeat}-{number}", plan.short_prompt, max_tokens=plan.long_prompt)
            while len(self.watch.token_s) < plan.slots - 1 or not all(self.watch.token_s.values()):
                self._step()
            self._only_decode()
            long_id = f"long-{repeat}"
            self._submit(long_id, plan.long_prompt, max_tokens=1)
            while not self.watch.token_s[long_id]:
                self._step()
            joined_s, first_s = self.watch.arrived_s[long_id], self.watch.token_s[long_id][0]
            gaps += self.watch.itl_s(since_s=joined_s, until_s=first_s)
            ttfts.append(first_s - joined_s)
            self._only_decode()
            self._end_all()
        return {"ttft_long_ms": _percentiles(ttfts), **_gaps(gaps, self.watch.step_s)}

    def poisson(self) -> dict[str, Any]:
        """Jobs come at random; each is submitted between two steps, as soon as it is due."""
        started_s, due = perf_counter(), deque(self._arrivals())
        while due or self._engine.has_work:
            while due and due[0][0] <= perf_counter() - started_s:
                due_s, kind, num_prompt = due.popleft()
                self._submit(kind, num_prompt, self._plan.max_tokens)
                self.watch.arrived_s[kind] = started_s + due_s
            if self._engine.has_work:
                self._step()
            else:
                sleep(max(0.0, due[0][0] - (perf_counter() - started_s)))
        num_tokens = sum(map(len, self.watch.token_s.values()))
        return {
            "ttft_short_ms": _percentiles(self.watch.ttft_s("short")),
            "ttft_long_ms": _percentiles(self.watch.ttft_s("long")),
            **_gaps(self.watch.itl_s(), self.watch.step_s),
            "tokens_per_s": round(num_tokens / (perf_counter() - started_s), 1),
        }

    def _arrivals(self) -> Iterator[tuple[float, str, int]]:
        """When due, id, prompt tokens: the same for every budget."""
        due_s = 0.0
        for number in range(self._plan.num_jobs):
            due_s += self._random.expovariate(self._plan.jobs_per_s)
            is_long = number % self._plan.jobs_per_long == self._plan.jobs_per_long - 1
            num_prompt = self._plan.long_prompt if is_long else self._plan.short_prompt
            yield due_s, f"{'long' if is_long else 'short'}-{number}", num_prompt

    def _submit(self, job_id: str, num_prompt: int, max_tokens: int) -> None:
        ids = tuple(self._random.choices(PLAIN_IDS, k=num_prompt))
        job = GenerationJob(prompt_ids=ids, sampling=SamplingParams(max_tokens=max_tokens))
        self.watch.token_s[job_id] = []
        self._engine.submit(self._model.sequences(job_id, job, now_ms=0)[0])
        self.watch.arrived_s[job_id] = perf_counter()

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
        for sequence in self._engine.scheduler.running:
            sequence.abort = "dropped"
        self._engine.step()
        self.watch.token_s.clear()


def _gaps(itl_s: list[float], step_s: list[float]) -> dict[str, Any]:
    itl_ms, step_ms = _percentiles(itl_s), 1000 * median(step_s)
    return {
        "itl_ms": itl_ms,
        "step_ms": round(step_ms, 2),
        "itl_p99_over_step": round(itl_ms["p99"] / step_ms, 2),
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    return {f"p{percent}": round(1000 * cuts[percent - 1], 2) for percent in (50, 95, 99)}


def measure(plan: Plan, folder: Path) -> dict[str, Any]:
    path = write_tiny_gguf(
        folder / "latency.gguf", eos=False, context_length=2 * plan.long_prompt + plan.max_tokens, **SHAPE
    )
    # A prompt is computed whole here, however often it has come before.
    settings = WorkerSettings(model=path, slots=plan.slots, prefix_cache=False)
    model = LoadedModel.load(settings, "cpu")
    runs = [
        {
            "prefill_tokens": budget,
            "beside": Bench(model, settings, plan, budget).beside(),
            "poisson": Bench(model, settings, plan, budget).poisson(),
        }
        for budget in plan.budgets
    ]
    return {"benchmark": "latency", "plan": asdict(plan), "conditions": conditions(), "runs": runs}


def show(report: dict[str, Any]) -> None:
    for load, title in (("beside", "A long prompt beside streams"), ("poisson", "Poisson load")):
        table = Table(title=f"{title}: ms at p50 / p95 / p99")
        names = list(report["runs"][0][load])
        for name in ("prefill_tokens", *names):
            table.add_column(name.removesuffix("_ms"), justify="right")
        for run in report["runs"]:
            cells = (_cell(run[load][name]) for name in names)
            table.add_row(str(run["prefill_tokens"]), *cells)
        Console().print(table)
    Console().print(json.dumps(report["conditions"]))


def _cell(value: float | dict[str, float]) -> str:
    return " / ".join(f"{ms:.0f}" for ms in value.values()) if isinstance(value, dict) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        report = measure(Plan(), Path(folder))
    show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
