"""The cost of scheduling a step with 256 rows, against the step of the bundled model.

    python -m benchmarks.scheduler [--write]

The scheduler runs without a model: it admits, makes a batch, notes it as computed, and a token is put to
every sequence. The step of the engine is that of 256 greedy rows, without a queue. The profile adds up the
own time of each function over the steps with 1,000 waiting where one leaves and one comes.
"""

import cProfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import CodeType

from benchmarks.harness import Benchmark, main, timed_s
from benchmarks.jobs import PLAIN_IDS, greedy
from benchmarks.report import Row, Table
from benchmarks.timed_engine import TimedEngine
from llama_herd.model.pages import Pages, pages_for
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.scheduler import Scheduler
from llama_herd.worker.engine.sequence import Sequence


@dataclass(frozen=True)
class Plan:
    rows: int = 256
    waiting: int = 1000
    num_prompt: int = 64
    max_tokens: int = 400
    steps: int = 200
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


def timed(name: str, step: Callable[[], object], num_steps: int) -> Row:
    times_us = [1e6 * timed_s(step) for _ in range(num_steps)]
    return {"step": name, "median us": times_us, "longest us": max(times_us)}


def decoding_engine(plan: Plan) -> TimedEngine:
    """Of the bundled model, with full rows."""
    most = plan.rows * plan.num_prompt
    engine = TimedEngine.load(slots=plan.rows, threads=1, dtype="float32", prefill_tokens=most)
    for number in range(plan.rows):
        engine.submit(f"job-{number}", PLAIN_IDS[number : number + plan.num_prompt], greedy(plan.max_tokens))
    engine.fill()
    return engine


def profile(plan: Plan) -> Iterator[Row]:
    """The functions with the largest time of their own, and their share."""
    line, profiler = Line(plan, plan.waiting), cProfile.Profile()
    profiler.enable()
    for _ in range(plan.steps):
        line.swap()
    profiler.disable()
    entries = [entry for entry in profiler.getstats() if _file(entry.code) != "benchmarks/scheduler.py"]
    total_s = sum(entry.inlinetime for entry in entries)
    for entry in sorted(entries, key=lambda entry: -entry.inlinetime)[:5]:
        name = entry.code if isinstance(entry.code, str) else entry.code.co_qualname
        share = entry.inlinetime / total_s
        yield {"function": f"`{name}`", "in": f"`{_file(entry.code)}`", "share": share}


def _file(code: CodeType | str) -> str:
    """The file with its folder; "C" for functions that are written in C."""
    return "C" if isinstance(code, str) else Path(*Path(code.co_filename).parts[-2:]).as_posix()


def measure(plan: Plan) -> Iterator[Table]:
    decoding, crowded, changing = Line(plan, 0), Line(plan, plan.waiting), Line(plan, plan.waiting)
    waiting = f"{plan.waiting:,} waiting"
    rows = [
        timed("decode only", decoding.step, plan.steps),
        timed(waiting, crowded.step, plan.steps),
        timed(f"{waiting}, one leaves and one comes", changing.swap, plan.steps),
        timed("the engine's whole step, bundled model", decoding_engine(plan).step, plan.steps // 10),
    ]
    yield Table(rows, f"Steps of {plan.rows} rows")
    yield Table(list(profile(plan)), "Largest own times")


BENCHMARK = Benchmark("scheduler", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
