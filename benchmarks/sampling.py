"""The cost of drawing a step's tokens, by sampling parameters. The floor is one pass over the logits.

    python -m benchmarks.sampling [--write]

All rows of a batch ask the same. Each has 512 ids of prompt and 128 of output for its penalties to look at;
the second table has other lengths, half prompt and half output, all in a window that each new
token pushes another out of.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, in_turns, main, merged, timed_s
from benchmarks.report import Row, Table, across
from llama_herd.model.kernels.native import load_kernels
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.sampling.penalties import Penalties
from llama_herd.worker.engine.sampling.row import SamplingRow
from llama_herd.worker.engine.sampling.sampler import sample
from llama_herd.worker.loading.kernels import kernels_folder
from llama_herd.worker.settings import WorkerSettings

SEED = 1
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "top_k=50": {"temperature": 0.8, "top_k": 50},
    "top_p=0.9": {"temperature": 0.8, "top_p": 0.9},
    "min_p=0.05": {"temperature": 0.8, "min_p": 0.05},
    "top_k=50, top_p=0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "all penalties": {
        "temperature": 0,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
    "logprobs, top 5": {"temperature": 0, "logprobs": True, "top_logprobs": 5},
}


@dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (1, 32, 256)
    vocabularies: tuple[int, ...] = (32_000, 128_000)
    num_prompt: int = 512
    num_output: int = 128
    lengths: tuple[int, ...] = (0, 128, 2048)
    rounds: int = 7


def rows_of(asked: dict[str, Any], logits: Tensor, num_prompt: int, num_output: int) -> list[SamplingRow]:
    """As many as there are logits for, each with a text of random tokens of its own."""
    (num_rows, num_tokens), random = logits.shape, Random(SEED)
    params = SamplingParams.model_validate(asked)

    def grown() -> Penalties | None:
        penalties = Penalties.if_any(params, random.choices(range(num_tokens), k=num_prompt))
        if penalties is not None:
            for token_id in random.choices(range(num_tokens), k=num_output):
                penalties.add(token_id)
        return penalties

    return [SamplingRow(params, row, num_output, grown()) for row in range(num_rows)]


def random_logits(num_rows: int, num_tokens: int) -> Tensor:
    return 3 * torch.randn(num_rows, num_tokens, generator=torch.Generator().manual_seed(SEED))


def costs_ms(num_rows: int, num_tokens: int, plan: Plan) -> Row:
    """Of the floor and of every request; the first round only warms up."""
    native = load_kernels(kernels_folder(WorkerSettings.read())).with_threads(1).draw
    logits = random_logits(num_rows, num_tokens)
    draws = {
        name: partial(sample, logits, rows_of(asked, logits, plan.num_prompt, plan.num_output), native)
        for name, asked in REQUESTS.items()
    }
    acts: dict[str, Callable[[], object]] = {"floor": partial(logits.max, dim=-1), **draws}
    found = in_turns({name: partial(timed_s, act) for name, act in acts.items()}, plan.rounds - 1, warm=1)
    return {name: [1000 * one for one in times_s] for name, times_s in found.items()}


def lengths_ms(num_rows: int, num_tokens: int, plan: Plan) -> Iterator[Row]:
    """For each length of the rows' texts: time to draw with all penalties, and to note what was drawn."""
    logits = random_logits(num_rows, num_tokens)
    for length in plan.lengths:
        asked = {**REQUESTS["all penalties"], "repeat_last_n": length} if length else REQUESTS["greedy"]
        rows = rows_of(asked, logits, length // 2, length // 2)
        _, *steps = [step_ms(logits, rows) for _ in range(plan.rounds)]
        yield {"ids a row": length, **merged(steps)}


def step_ms(logits: Tensor, rows: list[SamplingRow]) -> dict[str, float]:
    drawn: list[Any] = []
    drawing_s = timed_s(lambda: drawn.extend(sample(logits, rows)))

    def note() -> None:
        for row, token in zip(rows, drawn, strict=True):
            if row.penalties is not None:
                row.penalties.add(token.token_id)

    return {"drawing": 1000 * drawing_s, "noting": 1000 * timed_s(note)}


def measure(plan: Plan) -> Iterator[Table]:
    torch.set_num_threads(1)
    columns = {
        f"{num_rows} x {num_tokens:,}": costs_ms(num_rows, num_tokens, plan)
        for num_tokens in plan.vocabularies
        for num_rows in plan.rows
    }
    yield across("ms a step", columns, "Drawing, rows x vocabulary")
    by_length = list(lengths_ms(plan.rows[-1], plan.vocabularies[0], plan))
    yield Table(by_length, "All penalties, by the length of texts, ms a step")


BENCHMARK = Benchmark("sampling", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
