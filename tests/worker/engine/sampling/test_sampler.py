"""The sampler against plain reference arithmetic, on small vocabularies."""

import math
from statistics import pstdev

import pytest
import torch

from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sampling import sampler
from llama_herd.worker.engine.sampling.row import NO_TOKEN, SamplingRow
from llama_herd.worker.engine.sampling.sampler import sample as sample_all
from llama_herd.worker.engine.sampling.scores import Scores
from tests.worker.engine.sampling.rows import row

LOGITS = torch.tensor([1.0, 2.0, 0.5, -1.0, 1.5, 0.0])
NUM_DRAWS = 10_000


def drawn_at(params: SamplingParams, seed: int, position: int) -> SamplingRow:
    return row(params, seed, ids=range(position))


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    return [drawn.token_id for drawn in sample_all(logits, rows)]


def reference(params: SamplingParams) -> list[float]:
    """Probabilities by temperature, top_n_sigma, min_p, top_k and top_p, one token after the other."""
    lowest = max(LOGITS.tolist()) - (params.top_n_sigma or math.inf) * pstdev(LOGITS.tolist())
    exps = {i: math.exp(x / params.temperature) for i, x in enumerate(LOGITS.tolist())}
    likely = [i for i in exps if LOGITS[i] >= lowest and exps[i] >= params.min_p * max(exps.values())]
    order = sorted(likely, key=lambda i: -exps[i])[: params.top_k or None]
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


@pytest.mark.long
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=1.7, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=2.0, top_k=4, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.4),
        SamplingParams(temperature=1.7, top_n_sigma=0.9),
        SamplingParams(temperature=1.7, top_n_sigma=2.0, min_p=0.1, top_p=0.9),
        SamplingParams(temperature=1.5, min_p=0.3, top_k=4, top_p=0.9),
    ],
)
def test_draws_follow_the_reference_distribution(params: SamplingParams) -> None:
    check_distribution(params)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=0.5, top_p=0.8, min_p=0.05),
        SamplingParams(temperature=2.0, top_p=0.9),
    ],
    ids=["few tokens suffice", "beside min_p, too", "they do not"],
)
def test_draws_by_top_p_follow_it_where_few_tokens_are_looked_at_first(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "NUCLEUS_TOKENS", (2, 3))
    check_distribution(params)


def check_distribution(params: SamplingParams) -> None:
    rows = [SamplingRow(params, 7, position) for position in range(NUM_DRAWS)]
    ids = sample(LOGITS.expand(NUM_DRAWS, -1), rows)
    counts = [ids.count(i) for i in range(len(LOGITS))]
    probs = reference(params)
    assert all(count == 0 for count, p in zip(counts, probs, strict=True) if p == 0)
    assert chi_square(counts, probs) < 20.5  # p = 0.001 at five degrees of freedom


def test_temperature_zero_takes_the_largest() -> None:
    assert sample(LOGITS[None], [drawn_at(SamplingParams(temperature=0), 1, 0)]) == [1]


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-300])
def test_temperatures_next_to_zero_take_the_largest_too(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1)
    rows = [drawn_at(params, seed, 0) for seed in range(50)]
    assert set(sample(LOGITS.expand(50, -1), rows)) == {1}


def test_penalties_that_leave_no_finite_logit_fail_their_row_alone() -> None:
    params = SamplingParams.model_construct(**dict(SamplingParams()) | {"repetition_penalty": 1e-300})
    rows = [
        drawn_at(SamplingParams(), 1, 3),
        drawn_at(params, 1, 3),
        drawn_at(SamplingParams(temperature=0), 1, 3),
    ]
    first, broken, last = sample(LOGITS.expand(3, -1), rows)
    assert broken == NO_TOKEN
    assert [first, last] == sample(LOGITS.expand(2, -1), [rows[0], rows[2]])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    mixed = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.3),
        SamplingParams(temperature=0.7, top_k=2),
        SamplingParams(temperature=1.0, top_p=0.5),
        SamplingParams(temperature=1.0, min_p=0.2, repetition_penalty=1.5, presence_penalty=1.0),
        SamplingParams(temperature=0, frequency_penalty=2.0, logit_bias={3: 2.5}, min_tokens=100),
    ]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50, generator=generator)
    rows = [drawn_at(mixed[number % len(mixed)], number, number) for number in range(40)]
    alone = [sample(logits[number][None], [rows[number]])[0] for number in range(40)]
    assert sample(logits, rows) == alone


def test_the_same_seed_and_position_draw_the_same_token() -> None:
    rows = [drawn_at(SamplingParams(temperature=2.0), 3, p) for p in (0, 1, 0, 1)]
    ids = sample(torch.zeros(4, 1000), rows)
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    rows = [drawn_at(SamplingParams(temperature=2.0, top_k=1), s, 0) for s in range(50)]
    assert set(sample(LOGITS.expand(50, -1), rows)) == {1}


def test_logprobs_are_the_models_own_whatever_is_drawn() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 40, generator=generator)
    wanted = SamplingParams(temperature=0, logprobs=True, top_logprobs=4, logit_bias={7: 50.0})
    rows = [
        drawn_at(wanted, 0, 0),
        drawn_at(SamplingParams(), 1, 0),
        drawn_at(SamplingParams(logprobs=True), 2, 0),
    ]
    first, second, third = sample_all(logits, rows)
    reference = logits.log_softmax(-1)
    assert first.token_id == 7
    assert first.logprob == pytest.approx(reference[0, 7].item(), abs=1e-5)
    assert [token_id for token_id, _ in first.top] == reference[0].topk(4).indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(reference[0].topk(4).values.tolist(), abs=1e-5)
    assert (second.logprob, second.top) == (None, ())
    assert third.logprob == pytest.approx(reference[2, third.token_id].item(), abs=1e-5)
    assert third.top == ()


def test_each_token_of_a_vocabulary_has_its_own_logprob() -> None:
    ids = torch.arange(len(LOGITS))
    scores = Scores.from_logits(LOGITS.expand(len(ids), -1), ids, num_top=0)
    assert scores.logprobs.tolist() == pytest.approx(LOGITS.log_softmax(-1).tolist(), abs=1e-5)


@pytest.mark.parametrize("spreads", [(4.0,), (0.1,), (4.0, 1.6, 0.1)], ids=["steep", "flat", "mixed"])
def test_looking_at_few_tokens_first_changes_no_draw_by_top_p(
    spreads: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(66, 5_000, generator=torch.Generator().manual_seed(1))
    logits *= torch.tensor(spreads).repeat(66 // len(spreads))[:, None]
    rows = [drawn_at(SamplingParams(top_p=0.9, min_p=n % 2 * 0.01), n, 3) for n in range(len(logits))]
    few_first = sample(logits, rows)
    monkeypatch.setattr(sampler, "NUCLEUS_TOKENS", ())
    assert few_first == sample(logits, rows)
