"""The host's part of a decoding step, where steps overlap and where each is read before the next one.

    python -m benchmarks.host_steps [--write]

The device does nothing: a forward gives logits that are there already, a replayed graph gives ids that are
there already. What is left is what the engine's thread does in a step: choose rows, launch, take ids, append
them, turn them to text, match stops, hand on. Where steps do not overlap, drawing is part of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import process_time
from typing import cast

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, main
from benchmarks.jobs import PLAIN_IDS
from benchmarks.report import Cell, Row, Table
from benchmarks.sampling import REQUESTS
from benchmarks.timed_engine import TimedEngine
from llama_herd.model.cache import Cache
from llama_herd.model.config import LlamaConfig
from llama_herd.model.decode_batch import AnyBatch
from llama_herd.model.llama2 import Llama
from llama_herd.model.tiling import FREE
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.decode_graphs import bucket_of
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.graph_device import Replay
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.runner import ModelRunner, Runner
from llama_herd.worker.engine.slot_runner import SlotRunner
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

WAYS: dict[str, dict[str, float]] = {
    "greedy": REQUESTS["greedy"],
    "random": {"temperature": 0.9},
    "all filters": {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "all penalties": REQUESTS["all penalties"],
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


def one_by_one(llama: Llama, cache: Cache, num_rows: int) -> Runner:
    return ModelRunner(llama, cache)


def overlapping(llama: Llama, cache: Cache, num_rows: int) -> Runner:
    return SlotRunner(llama, cache, IdleDevice(), num_rows)


RUNNERS: Mapping[str, Callable[[Llama, Cache, int], Runner]] = {
    "one by one": one_by_one,
    "overlapping": overlapping,
}


def decoding(
    model: LoadedModel, settings: WorkerSettings, name: str, way: str, num_rows: int, plan: Plan
) -> TimedEngine:
    """An engine with so many rows, all of which decode. Its cache is paged as on a GPU, and never touched."""
    config, num_pages = model.llama.config, model.cache.pages.num_pages
    cache = Cache(config, num_pages, max_length=model.max_length, consecutive=False)
    runner = RUNNERS[name](cast(Llama, NoModel(config, num_rows)), cache, num_rows)
    prefill = PrefillBudget(num_rows * plan.num_prompt)
    own = Engine(runner, cache.prefixes, max_rows=num_rows, prefill=prefill, sink=lambda outputs: None)
    engine = TimedEngine(model, settings, own)
    asked = {"max_tokens": plan.steps + 50, "ignore_eos": True, **WAYS[way]}
    for number in range(num_rows):
        prompt = PLAIN_IDS[number : number + plan.num_prompt]
        engine.submit(f"job-{number}", prompt, SamplingParams.model_validate(asked))
    for _ in range(10):
        engine.step()
    return engine


def run(model: LoadedModel, settings: WorkerSettings, name: str, way: str, plan: Plan) -> Row:
    """A step: on the clock, and of the processor."""
    found: dict[str, Cell] = {"steps": name, "draw": way}
    for num_rows in plan.rows:
        engine = decoding(model, settings, name, way, num_rows, plan)
        began_s = process_time()
        found[f"{num_rows} rows, us"] = [1e6 * engine.step() for _ in range(plan.steps)]
        found[f"{num_rows} rows, CPU us"] = 1e6 * (process_time() - began_s) / plan.steps
    return found


def measure(plan: Plan) -> Iterator[Table]:
    most = max(plan.rows)
    settings = WorkerSettings(slots=most, threads=1, dtype="float32", kv_cache_tokens=512 * most)
    model = LoadedModel.load(settings, "cpu")
    rows = [run(model, settings, name, way, plan) for way in plan.ways for name in RUNNERS]
    yield Table(rows, "The host's part of a decoding step")


BENCHMARK = Benchmark("host_steps", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
