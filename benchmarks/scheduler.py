"""The cost of scheduling a step with 256 rows, against the step of the bundled model.

    python -m benchmarks.scheduler [--write]

The scheduler runs without a model: it admits, makes a batch, notes it as computed, and a token is put to
every sequence. The step of the engine is that of 256 greedy rows, without a queue. The profile adds up the
own time of each function over the steps with 1,000 waiting where one leaves and one comes.

The host's part is the engine's step with logits that are there already, of the bundled model's vocabulary.
"""

import cProfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from types import CodeType
from typing import cast

import torch
from torch import Tensor

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import PLAIN_IDS
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import Pages, pages_for
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.model.tiling import FREE
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.scheduler import Scheduler
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5}


@dataclass(frozen=True)
class Plan:
    rows: int = 256
    waiting: int = 1000
    num_prompt: int = 64
    max_tokens: int = 400
    steps: int = 200
    widths: tuple[int, ...] = (1, 32, 256)
    tenants: int = 8


class Line:
    """A scheduler with full rows, and new jobs for it."""

    def __init__(self, plan: Plan, num_waiting: int) -> None:
        num_pages = 2 * plan.rows * pages_for(plan.num_prompt + plan.max_tokens)
        prefixes = PrefixCache(Pages(num_pages, consecutive=True))
        self.scheduler = Scheduler(
            prefixes, max_rows=plan.rows, prefill=PrefillBudget(plan.rows * plan.num_prompt)
        )
        self._plan = plan
        self._numbers = count()
        for _ in range(plan.rows + num_waiting):
            self.join()
        self.step()

    def join(self) -> None:
        """Submit one more job, of another tenant than the last one. All prompts differ."""
        number = next(self._numbers)
        sequence = Sequence(
            job_id=f"job-{number}",
            prompt_ids=[number] * self._plan.num_prompt,
            params=SamplingParams(max_tokens=self._plan.max_tokens),
            seed=0,
            max_length=4096,
            eos_ids=frozenset(),
            detokenizer=Detokenizer([b""]),
            tenant=f"tenant-{number % self._plan.tenants}",
            priority=number % 3,
        )
        self.scheduler.submit(sequence)

    def step(self) -> None:
        self.scheduler.admit()
        rows = self.scheduler.next_batch()
        for row in rows:
            self.scheduler.note_computed(row)
            self.scheduler.note_read(row)
        for row in rows:
            row.sequence.ids.append(1)

    def swap(self) -> None:
        """The oldest leaves, another job comes, and the next in line gets the row."""
        self.scheduler.remove(self.scheduler.running[0])
        self.join()
        self.step()


def step_us(step: Callable[[], None], plan: Plan) -> dict[str, float]:
    times = []
    for _ in range(plan.steps):
        started_s = perf_counter()
        step()
        times.append(1e6 * (perf_counter() - started_s))
    return {"median us": round(median(times), 1), "longest us": round(max(times), 1)}


def ignore(outputs: list[StepOutput]) -> None:
    """A sink that ignores everything."""


def engine_step_us(plan: Plan) -> dict[str, float]:
    """Steps of the bundled model that only decode."""
    settings = WorkerSettings(
        slots=plan.rows, threads=1, dtype="float32", prefill_tokens=plan.rows * plan.num_prompt
    )
    model = LoadedModel.load(settings, "cpu")
    engine = model.engine(settings, ignore)
    sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=0, ignore_eos=True)
    fill(engine, model, sampling, plan, plan.rows)
    return step_us(engine.step, Plan(steps=plan.steps // 10))


def fill(engine: Engine, model: LoadedModel, sampling: SamplingParams, plan: Plan, num_rows: int) -> None:
    """Step until this many rows only decode."""
    for number in range(num_rows):
        prompt_ids = tuple(PLAIN_IDS[number : number + plan.num_prompt])
        job = GenerationJob(prompt_ids=prompt_ids, sampling=sampling)
        engine.submit(model.sequences(f"job-{number}", job, now_ms=0)[0])
    while any(sequence.num_uncached > 1 for sequence in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()


class PreparedLogits:
    """In place of a model: the same logits each step."""

    tiling = FREE
    is_native = False

    def __init__(self, num_rows: int, num_tokens: int) -> None:
        self._logits = 3 * torch.randn(num_rows, num_tokens, generator=torch.Generator().manual_seed(1))

    def forward(self, *_: object) -> Tensor:
        return self._logits


def host_us(num_rows: int, plan: Plan) -> dict[str, float]:
    """Steps that only decode, but for their forward, with and without penalties."""
    settings = WorkerSettings(
        slots=num_rows, threads=1, dtype="float32", prefill_tokens=num_rows * plan.num_prompt
    )
    model = LoadedModel.load(settings, "cpu")
    model.llama = cast(Llama, PreparedLogits(num_rows, model.tokenizer.vocab_size))
    times = {"rows": float(num_rows)}
    for name, penalties in (("greedy", {}), ("all penalties", PENALTIES)):
        engine = model.engine(settings, ignore)
        sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=0, ignore_eos=True)
        fill(engine, model, sampling.model_copy(update=penalties), plan, num_rows)
        times[f"{name} us"] = step_us(engine.step, plan)["median us"]
        engine.abort([one.info for one in engine.scheduler.running], "dropped")
        engine.step()
    return times


def profile(plan: Plan) -> list[dict[str, str | float]]:
    """The functions with the largest time of their own, and their share."""
    line, profiler = Line(plan, plan.waiting), cProfile.Profile()
    profiler.enable()
    for _ in range(plan.steps):
        line.swap()
    profiler.disable()
    entries = [entry for entry in profiler.getstats() if _file(entry.code) != "benchmarks/scheduler.py"]
    total_s = sum(entry.inlinetime for entry in entries)
    entries.sort(key=lambda entry: -entry.inlinetime)
    return [
        {
            "function": f"`{_name(entry.code)}`",
            "in": f"`{_file(entry.code)}`",
            "share": round(entry.inlinetime / total_s, 3),
        }
        for entry in entries[:5]
    ]


def _name(code: CodeType | str) -> str:
    return code if isinstance(code, str) else code.co_qualname


def _file(code: CodeType | str) -> str:
    """The file with its folder; empty for functions written in C."""
    return "C" if isinstance(code, str) else Path(*Path(code.co_filename).parts[-2:]).as_posix()


def measure(plan: Plan) -> Report:
    decoding, crowded, changing = Line(plan, 0), Line(plan, plan.waiting), Line(plan, plan.waiting)
    runs = [
        {"step": "decode only", **step_us(decoding.step, plan)},
        {"step": f"{plan.waiting:,} waiting", **step_us(crowded.step, plan)},
        {"step": f"{plan.waiting:,} waiting, one leaves and one comes", **step_us(changing.swap, plan)},
        {"step": "the engine's whole step, bundled model", **engine_step_us(plan)},
    ]
    return {
        "benchmark": "scheduler",
        "plan": asdict(plan),
        "conditions": conditions(),
        "runs": runs,
        "host": [host_us(num_rows, plan) for num_rows in plan.widths],
        "profile": profile(plan),
    }


def tables(report: Report) -> Iterator[Table]:
    for name, title in (
        ("runs", f"Steps of {report['plan']['rows']} rows"),
        ("host", "The host's part of a step"),
        ("profile", "Largest own times"),
    ):
        yield Table(list(report[name][0]), [list(row.values()) for row in report[name]], title)


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
