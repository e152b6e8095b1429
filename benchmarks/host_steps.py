"""The host's part of a decoding step, where steps overlap and where each is read before the next one.

    python -m benchmarks.host_steps [--write]

The device does nothing: a forward gives logits that are there already, a replayed graph gives ids that are
there already. What is left is what the engine's thread does in a step: choose rows, launch, take ids, append
them, turn them to text, match stops, hand on. Where steps do not overlap, drawing is part of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time
from typing import cast

import torch
from torch import Tensor

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import PLAIN_IDS
from llama_herd.model.cache import Cache
from llama_herd.model.config import LlamaConfig
from llama_herd.model.decode_batch import AnyBatch
from llama_herd.model.llama2 import Llama
from llama_herd.model.tiling import FREE
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.decode_graphs import bucket_of
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.graph_device import Replay
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.runner import ModelRunner, Runner
from llama_herd.worker.engine.slot_runner import SlotRunner
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

WAYS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "random": {"temperature": 0.9},
    "all filters": {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "all penalties": {
        "temperature": 0.0,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
}


@dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (1, 64, 256)
    steps: int = 200
    num_prompt: int = 32
    ways: tuple[str, ...] = tuple(WAYS)


class NoModel:
    """In place of a model: the same logits each step, for as many rows as there are."""

    tiling = FREE
    is_native = False

    def __init__(self, config: LlamaConfig, num_rows: int) -> None:
        self.config = config
        self._logits = 3 * torch.randn(
            bucket_of(num_rows), config.vocab_size, generator=torch.Generator().manual_seed(1)
        )

    def forward(self, batch: AnyBatch, *_: object) -> Tensor:
        assert batch.seen is not None  # every forward sends it to the device
        return self._logits[: len(batch.logit_rows)]


class IdleEvent:
    def record(self) -> None:
        """Nothing is told to the device."""

    def wait(self) -> None:
        """All is done already."""


class IdleDevice:
    """Its graphs are run once, when they are captured, and never again."""

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def event(self) -> IdleEvent:
        return IdleEvent()

    def capture(self, work: Callable[[], None]) -> Replay:
        work()
        return lambda: None


def ignore(outputs: list[StepOutput]) -> None:
    """A sink that ignores everything."""


def one_by_one(llama: Llama, cache: Cache, num_rows: int) -> Runner:
    return ModelRunner(llama, cache)


def overlapping(llama: Llama, cache: Cache, num_rows: int) -> Runner:
    return SlotRunner(llama, cache, IdleDevice(), num_rows)


RUNNERS: Mapping[str, Callable[[Llama, Cache, int], Runner]] = {
    "one by one": one_by_one,
    "overlapping": overlapping,
}


def paged_cache(model: LoadedModel) -> Cache:
    """As on a GPU; its pages are never touched."""
    num_pages = model.cache.pages.num_pages
    return Cache(model.llama.config, num_pages, max_length=model.max_length, consecutive=False)


def step_us(engine: Engine, plan: Plan) -> dict[str, float]:
    """A step: on the clock, and of the processor."""
    times, spent_s = list[float](), process_time()
    for _ in range(plan.steps):
        started_s = perf_counter()
        engine.step()
        times.append(perf_counter() - started_s)
    spent_s = process_time() - spent_s
    return {"us": round(1e6 * median(times), 1), "CPU us": round(1e6 * spent_s / plan.steps, 1)}


def decoding(model: LoadedModel, name: str, way: str, num_rows: int, plan: Plan) -> Engine:
    """An engine with so many rows, all of which decode."""
    cache = paged_cache(model)
    prefill = PrefillBudget(num_rows * plan.num_prompt)
    runner = RUNNERS[name](cast(Llama, NoModel(model.llama.config, num_rows)), cache, num_rows)
    engine = Engine(runner, cache.prefixes, max_rows=num_rows, prefill=prefill, sink=ignore)
    asked = {"max_tokens": plan.steps + 50, "ignore_eos": True, **WAYS[way]}
    sampling = SamplingParams.model_validate(asked)
    for number in range(num_rows):
        prompt_ids = tuple(PLAIN_IDS[number : number + plan.num_prompt])
        job = GenerationJob(prompt_ids=prompt_ids, sampling=sampling)
        engine.submit(*model.sequences(f"job-{number}", job, now_ms=0))
    for _ in range(10):
        engine.step()
    return engine


def run(model: LoadedModel, name: str, way: str, plan: Plan) -> dict[str, str | float]:
    found: dict[str, str | float] = {"steps": name, "draw": way}
    for num_rows in plan.rows:
        times = step_us(decoding(model, name, way, num_rows, plan), plan)
        found |= {f"{num_rows} rows, {unit}": us for unit, us in times.items()}
    return found


def measure(plan: Plan) -> Report:
    most = max(plan.rows)
    settings = WorkerSettings(slots=most, threads=1, dtype="float32", kv_cache_tokens=512 * most)
    model = LoadedModel.load(settings, "cpu")
    runs = [run(model, name, way, plan) for way in plan.ways for name in RUNNERS]
    return {"benchmark": "host_steps", "plan": asdict(plan), "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    runs = report["runs"]
    yield Table(list(runs[0]), [list(run.values()) for run in runs], "The host's part of a decoding step")


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
