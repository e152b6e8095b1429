"""The sampler against plain reference arithmetic, on small vocabularies."""

import math

import pytest
import torch

from llama_herd.tasks.job import SamplingParams
from llama_herd.worker.sampler import Draw, sample

LOGITS = torch.tensor([1.0, 2.0, 0.5, -1.0, 1.5, 0.0])
NUM_DRAWS = 20_000


def reference(params: SamplingParams) -> list[float]:
    """Probabilities by temperature, top_k, top_p, one token after the other."""
    exps = {i: math.exp(x / params.temperature) for i, x in enumerate(LOGITS.tolist())}
    order = sorted(exps, key=lambda i: -exps[i])[: params.top_k or None]
    total = sum(exps[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass < params.top_p:
            kept.append(i)
        mass += exps[i] / total
    total = sum(exps[i] for i in kept)
    return [exps[i] / total if i in kept else 0.0 for i in exps]


def chi_square(counts: list[int], probs: list[float]) -> float:
    return sum((c - NUM_DRAWS * p) ** 2 / (NUM_DRAWS * p) for c, p in zip(counts, probs, strict=True) if p)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=1.7, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=2.0, top_k=4, top_p=0.8),
    ],
)
def test_draws_follow_the_reference_distribution(params: SamplingParams) -> None:
    draws = [Draw(params, seed=7, position=position) for position in range(NUM_DRAWS)]
    ids = sample(LOGITS.expand(NUM_DRAWS, -1), draws)
    counts = [ids.count(i) for i in range(len(LOGITS))]
    probs = reference(params)
    assert all(count == 0 for count, p in zip(counts, probs, strict=True) if p == 0)
    assert chi_square(counts, probs) < 20.5  # p = 0.001 at five degrees of freedom


def test_temperature_zero_takes_the_largest() -> None:
    assert sample(LOGITS[None], [Draw(SamplingParams(temperature=0), seed=1, position=0)]) == [1]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    mixed = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.3),
        SamplingParams(temperature=0.7, top_k=2),
        SamplingParams(temperature=1.0, top_p=0.5),
    ]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50, generator=generator)
    draws = [Draw(mixed[row % 4], seed=row, position=row) for row in range(40)]
    alone = [sample(logits[row][None], [draws[row]])[0] for row in range(40)]
    assert sample(logits, draws) == alone


def test_the_same_seed_and_position_draw_the_same_token() -> None:
    draws = [Draw(SamplingParams(temperature=2.0), seed=3, position=p) for p in (0, 1, 0, 1)]
    ids = sample(torch.zeros(4, 1000), draws)
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    draws = [Draw(SamplingParams(temperature=2.0, top_k=1), seed=s, position=0) for s in range(50)]
    assert set(sample(LOGITS.expand(50, -1), draws)) == {1}
