"""Requests of a load, and an engine that runs one load after the other."""

from collections.abc import Iterator
from random import Random
from typing import Any

from benchmarks.gpu.scale import DRAWS, Load
from benchmarks.timed_engine import TimedEngine, Trace
from llama_herd.tasks.protocol.sampling import SamplingParams


def start(engine: TimedEngine, load: Load, seed: int) -> Trace:
    """Give it all requests of a load at once. Nothing ends them early; no two runs share a prompt."""
    trace = engine.begin()
    for index, (ids, params) in enumerate(requests(load, engine.model.tokenizer.vocab_size, seed)):
        engine.submit(f"run-{seed}-{index}", ids, params)
    return trace


def run(engine: TimedEngine, load: Load, seed: int) -> Trace:
    """Step all requests of a load to their end."""
    start(engine, load, seed)
    return engine.run()


def requests(load: Load, vocab_size: int, seed: int) -> Iterator[tuple[tuple[int, ...], SamplingParams]]:
    """The prompt of each request of a load, and how its answer is drawn."""
    given: dict[str, Any] = {"ignore_eos": True, **DRAWS[load.draw]}
    for ids, num_out in zip(random_prompts(load, vocab_size, seed), load.outputs(seed), strict=True):
        least = min(num_out, given.get("min_tokens", 0))
        yield ids, SamplingParams.model_validate(given | {"max_tokens": num_out, "min_tokens": least})


def random_prompts(load: Load, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """One prompt of random ids for each request."""
    chance = Random(seed)
    return [tuple(chance.choices(range(vocab_size), k=load.num_in)) for _ in range(load.num_requests)]
