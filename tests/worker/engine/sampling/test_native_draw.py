"""A native draw finds the token that torch finds among all, on each instruction set."""

import threading
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llama_herd.model.kernels import draw as draw_module
from llama_herd.model.kernels.draw import Draw
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sampling.row import NO_TOKEN, SamplingRow
from llama_herd.worker.engine.sampling.sampler import sample
from tests.model.native_library import DISTINCT_SETS, kernels_of

NUM_ROWS = 24
PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.2, min_p=0.05),
    SamplingParams(temperature=2.0, min_p=0.5),
    SamplingParams(temperature=1.5, top_n_sigma=1.5),
    SamplingParams(temperature=1.1, top_n_sigma=2.5, min_p=0.02, logit_bias={3: -100.0}),
    SamplingParams(temperature=0.7, logit_bias={3: -100.0}),
)


@pytest.fixture(scope="module", params=DISTINCT_SETS, ids=lambda set: set.name)
def native(request: pytest.FixtureRequest, kernels_folder: Path) -> Draw:
    draw = kernels_of(request.param, kernels_folder).draw
    assert draw is not None
    return draw


def rows_of(params: SamplingParams, position: int = 0) -> list[SamplingRow]:
    return [SamplingRow(params, seed, position) for seed in range(NUM_ROWS)]


def random_logits(num_tokens: int, spread: float) -> Tensor:
    return spread * standard_logits(num_tokens)


@cache
def standard_logits(num_tokens: int) -> Tensor:
    return torch.randn(NUM_ROWS, num_tokens, generator=torch.Generator().manual_seed(num_tokens))


@cache
def drawn_by_torch(number: int, num_tokens: int, spread: float) -> list[SampledToken]:
    """By parameters of this number; the same beside each instruction set."""
    return sample(random_logits(num_tokens, spread), rows_of(PARAMS[number], position=int(spread)))


@pytest.mark.drawn
@pytest.mark.parametrize("number", range(len(PARAMS)))
@pytest.mark.parametrize("num_tokens", [4, 16, 17, 1_000, 32_003])
def test_it_draws_what_torch_draws(native: Draw, number: int, num_tokens: int) -> None:
    for spread in (0.0, 0.5, 3.0, 30.0):
        logits, rows = random_logits(num_tokens, spread), rows_of(PARAMS[number], position=int(spread))
        assert sample(logits, rows, native) == drawn_by_torch(number, num_tokens, spread)


def test_few_tokens_are_looked_at_closely(native: Draw) -> None:
    logits = random_logits(32_000, spread=2.0)
    column = torch.ones(NUM_ROWS, 1)
    prefixes = torch.arange(NUM_ROWS, dtype=torch.int32)[:, None] * 77_777
    largest = logits.amax(dim=-1, keepdim=True)
    found = native.candidates(logits, column, prefixes, largest, column * float("-inf"))
    assert found is not None
    _, counts = found
    assert bool((counts.sum(dim=-1) >= 1).all())
    assert counts.sum(dim=-1).float().mean() < 4


def test_rows_without_a_draw_are_as_without_it(native: Draw) -> None:
    logits, rows = random_logits(100, spread=1.0), rows_of(PARAMS[0])
    logits[1, 5], logits[2] = float("nan"), float("-inf")
    logits[3, :99], logits[4, 7] = float("-inf"), float("inf")
    drawn = sample(logits, rows, native)
    assert drawn == sample(logits, rows)
    assert [token.token_id for token in drawn[1:5]] == [NO_TOKEN, NO_TOKEN, 99, NO_TOKEN]


def test_where_too_many_can_win_all_are_looked_at(native: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_module, "ROOM", 1)
    logits, rows = random_logits(1_000, spread=0.5), rows_of(PARAMS[0])
    assert sample(logits, rows, native) == sample(logits, rows)


def test_threads_that_draw_at_once_do_not_disturb_each_other(native: Draw) -> None:
    expected = [sample(random_logits(num, 2.0), rows_of(PARAMS[0])) for num in (1_000, 8_003)]
    wrong: list[int] = []

    def go_on(number: int, num_tokens: int) -> None:
        logits, rows = random_logits(num_tokens, 2.0), rows_of(PARAMS[0])
        wrong.extend(number for _ in range(8) if sample(logits, rows, native) != expected[number])

    threads = [threading.Thread(target=go_on, args=one) for one in enumerate((1_000, 8_003))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
