"""Requests of a load, and an engine that runs one load after the other."""

from random import Random

from benchmarks.gpu.scale import DRAWS, Load
from benchmarks.timed_engine import TimedEngine, Trace
from llama_herd.tasks.protocol.sampling import SamplingParams


def start(engine: TimedEngine, load: Load, seed: int) -> Trace:
    """Give it all requests of a load at once. Nothing ends them early; no two runs share a prompt."""
    trace = engine.begin()
    for index, ids in enumerate(random_prompts(load, engine.model.tokenizer.vocab_size, seed)):
        engine.submit(f"run-{seed}-{index}", ids, sampling(load))
    return trace


def run(engine: TimedEngine, load: Load, seed: int) -> Trace:
    """Step all requests of a load to their end."""
    start(engine, load, seed)
    return engine.run()


def sampling(load: Load) -> SamplingParams:
    given = {"max_tokens": load.num_out, "ignore_eos": True, **DRAWS[load.draw]}
    return SamplingParams.model_validate(
        given | {"min_tokens": min(load.num_out, given.get("min_tokens", 0))}
    )


def random_prompts(load: Load, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """One prompt of random ids for each request."""
    chance = Random(seed)
    return [tuple(chance.choices(range(vocab_size), k=load.num_in)) for _ in range(load.num_requests)]
