"""The cost of drawing a step's tokens, by sampling parameters. The floor is one pass over the logits.

    python -m benchmarks.sampling [--write]

All rows of a batch ask the same. Each has 512 ids of prompt and 128 of output for its penalties to look at;
the second table has other lengths, half prompt and half output, all in a window that each new
token pushes another out of.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
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


def rows_of(
    params: SamplingParams, num_rows: int, num_tokens: int, num_prompt: int, num_output: int
) -> list[SamplingRow]:
    random = Random(SEED)
    return [
        SamplingRow(params, row, num_output, grown(params, random, num_tokens, num_prompt, num_output))
        for row in range(num_rows)
    ]


def grown(
    params: SamplingParams, random: Random, num_tokens: int, num_prompt: int, num_output: int
) -> Penalties | None:
    """Penalties that look at a text of random tokens."""
    penalties = Penalties.if_any(params, random.choices(range(num_tokens), k=num_prompt))
    if penalties is not None:
        for token_id in random.choices(range(num_tokens), k=num_output):
            penalties.add(token_id)
    return penalties


def rounds_ms(
    logits: Tensor, by_request: dict[str, list[SamplingRow]], plan: Plan
) -> Iterator[dict[str, float]]:
    """Each round times the floor and every request once, one after the other."""
    native = load_kernels(kernels_folder(WorkerSettings.read())).with_threads(1).draw
    for _ in range(plan.rounds):
        started_s = perf_counter()
        logits.max(dim=-1)
        times = {"floor": perf_counter() - started_s}
        for name, rows in by_request.items():
            started_s = perf_counter()
            sample(logits, rows, native)
            times[name] = perf_counter() - started_s
        yield {name: 1000 * seconds for name, seconds in times.items()}


def costs_ms(num_rows: int, num_tokens: int, plan: Plan) -> dict[str, float]:
    """Median of the rounds by request; the first round only warms up."""
    generator = torch.Generator().manual_seed(SEED)
    logits = 3 * torch.randn(num_rows, num_tokens, generator=generator)
    by_request = {
        name: rows_of(
            SamplingParams.model_validate(fields), num_rows, num_tokens, plan.num_prompt, plan.num_output
        )
        for name, fields in REQUESTS.items()
    }
    _, *rounds = rounds_ms(logits, by_request, plan)
    return {name: round(median(times[name] for times in rounds), 4) for name in rounds[0]}


def lengths_ms(num_rows: int, num_tokens: int, plan: Plan) -> Iterator[dict[str, float]]:
    """For each length of the rows' texts: time to draw with all penalties, and to note what was drawn."""
    generator = torch.Generator().manual_seed(SEED)
    logits = 3 * torch.randn(num_rows, num_tokens, generator=generator)
    penalising = REQUESTS["all penalties"]
    for length in plan.lengths:
        params = SamplingParams.model_validate({**penalising, "repeat_last_n": length or -1})
        rows = rows_of(
            params if length else SamplingParams(temperature=0),
            *(num_rows, num_tokens, length // 2, length // 2),
        )
        steps = [step_ms(logits, rows) for _ in range(plan.rounds)]
        parts = {name: round(median(step[name] for step in steps[1:]), 4) for name in steps[0]}
        yield {"ids a row": length, **parts}


def step_ms(logits: Tensor, rows: list[SamplingRow]) -> dict[str, float]:
    started_s = perf_counter()
    tokens = sample(logits, rows)
    sampled_s = perf_counter()
    for row, token in zip(rows, tokens, strict=True):
        if row.penalties is not None:
            row.penalties.add(token.token_id)
    noted_s = perf_counter()
    return {"drawing": 1000 * (sampled_s - started_s), "noting": 1000 * (noted_s - sampled_s)}


def measure(plan: Plan) -> Report:
    torch.set_num_threads(1)
    return {
        "benchmark": "sampling",
        "plan": asdict(plan),
        "conditions": conditions(),
        "runs": [
            {"rows": num_rows, "vocabulary": num_tokens, "ms": costs_ms(num_rows, num_tokens, plan)}
            for num_tokens, num_rows in product(plan.vocabularies, plan.rows)
        ],
        "lengths": list(lengths_ms(plan.rows[-1], plan.vocabularies[0], plan)),
    }


def tables(report: Report) -> Iterator[Table]:
    runs = report["runs"]
    head = ["ms a step", *(f"{run['rows']} x {run['vocabulary']:,}" for run in runs)]
    rows = [[name, *(run["ms"][name] for run in runs)] for name in runs[0]["ms"]]
    yield Table(head, rows, "Drawing, rows x vocabulary")
    by_length = [list(run.values()) for run in report["lengths"]]
    yield Table(list(report["lengths"][0]), by_length, "All penalties, by the length of texts, ms a step")


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
