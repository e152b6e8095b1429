"""Law: a draw from slots is the draw of the sampler, in every way to draw, whatever else the step draws."""

import random
from array import array
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sampling.row import NO_TOKEN
from llama_herd.worker.engine.sampling.rules import apply_in_slots
from llama_herd.worker.engine.sampling.sampler import Drawing, drawn, sample
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.slots import POSITION, Slots
from tests.worker.engine.sampling.rows import row

NUM_TOKENS, MAX_LENGTH, NUM_ROWS = 300, 96, 40
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.4}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "nearly greedy": {"temperature": 1e-6},
    "plain": {"temperature": 0.9},
    "min_p": {"temperature": 1.1, "min_p": 0.1},
    "top_n_sigma": {"temperature": 1.3, "top_n_sigma": 1.2},
    "top_k": {"temperature": 1.3, "top_k": 7},
    "top_p": {"temperature": 1.3, "top_p": 0.8},
    "all filters": {"temperature": 1.5, "top_n_sigma": 3.0, "min_p": 0.01, "top_k": 30, "top_p": 0.9},
    "penalties": {"temperature": 0.0, **PENALTIES},
    "a window": {"temperature": 0.0, **PENALTIES, "repeat_last_n": 9},
    "no window": {"temperature": 0.0, **PENALTIES, "repeat_last_n": 0},
    "presence alone": {"temperature": 0.8, "presence_penalty": 1.5, "repeat_last_n": 20},
    "everything": {"temperature": 1.2, "min_p": 0.01, "top_k": 50, "top_p": 0.95, **PENALTIES},
}
EVERYTHING = Drawing(is_random=True, is_sorted=True, is_ruled=True)


def sequence(number: int, params: SamplingParams) -> Sequence:
    rng = random.Random(number)
    one = Sequence(
        job_id=f"job-{number}",
        prompt_ids=rng.choices(range(25), k=rng.randint(1, 40)),
        params=params,
        seed=rng.getrandbits(63),
        max_length=MAX_LENGTH,
        eos_ids=frozenset(),
        detokenizer=Detokenizer([b"x"] * NUM_TOKENS),
        choice=number % 3,
    )
    one.replay(rng.choices(range(25), k=rng.randint(0, 30)))
    one.pages, one.slot = (number,), number
    return one


def write(slots: Slots, one: Sequence) -> None:
    words = slots.words_of(one)
    slots.words[one.slot, : len(words)] = torch.frombuffer(words, dtype=torch.int64)


def slots_of(sequences: list[Sequence]) -> Slots:
    slots = Slots(len(sequences), MAX_LENGTH, trash_page=99, device=torch.device("cpu"))
    slots.words[: slots.trash].random_(0, NUM_TOKENS)  # what those before have left
    for one in sequences:
        write(slots, one)
    return slots


def draw(logits: Tensor, slots: Slots, drawing: Drawing, index: list[int]) -> Tensor:
    rows = slots.rows(torch.tensor(index))
    if drawing.is_ruled:
        logits = apply_in_slots(logits, rows)
    ids = drawn(logits, rows, drawing)
    slots.settle(rows, rows.next_positions, ids)
    return ids


def random_logits(seed: int, num_rows: int = NUM_ROWS) -> Tensor:
    return 3 * torch.randn(num_rows, NUM_TOKENS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", MODES)
def test_slots_draw_what_the_sampler_draws(mode: str) -> None:
    """Step after step: each draw becomes part of what the next one is penalised for."""
    params = SamplingParams(max_tokens=90, **MODES[mode])
    sequences = [sequence(number, params) for number in range(NUM_ROWS)]
    enough, more = slots_of(sequences), slots_of(sequences)
    index = list(range(NUM_ROWS))
    for step in range(12):
        logits = random_logits(step)
        expected = [token.token_id for token in sample(logits, [one.sampling_row() for one in sequences])]
        assert draw(logits, enough, Drawing.of(row(params)), index).tolist() == expected
        assert draw(logits, more, EVERYTHING, index).tolist() == expected
        for one, token_id in zip(sequences, expected, strict=True):
            one.append(token_id)


def test_rows_of_all_modes_together_draw_what_each_draws_alone() -> None:
    params = [SamplingParams(max_tokens=90, **mode) for mode in MODES.values()]
    sequences = [sequence(number, one) for number, one in enumerate(params)]
    logits = random_logits(1, len(params))
    expected = [sample(logits[n : n + 1], [one.sampling_row()])[0] for n, one in enumerate(sequences)]
    index = list(range(len(params)))
    drawing = Drawing()
    for one in params:
        drawing |= Drawing.of(row(one))
    assert drawing == EVERYTHING
    assert [SampledToken(i) for i in draw(logits, slots_of(sequences), drawing, index).tolist()] == expected


def test_any_order_of_slots_and_rows_of_trash_change_nothing() -> None:
    sequences = [sequence(number, SamplingParams(max_tokens=90)) for number in range(6)]
    slots, logits = slots_of(sequences), random_logits(2, 6)
    expected = [token.token_id for token in sample(logits, [one.sampling_row() for one in sequences])]
    index = [4, 0, 5, 2]
    padded = torch.cat((logits[index], torch.full((2, NUM_TOKENS), torch.nan)))
    ids = draw(padded, slots, Drawing.of(row(sequences[0].params)), [*index, slots.trash, slots.trash])
    assert ids.tolist() == [*(expected[n] for n in index), NO_TOKEN, NO_TOKEN]
    assert slots.rows(torch.tensor([1, 4])).integers(POSITION).tolist() == [
        sequences[1].length - 1,
        sequences[4].length,
    ]


def test_a_row_without_numbers_draws_no_token_and_goes_on_from_token_0() -> None:
    sequences = [sequence(number, SamplingParams(max_tokens=90, **PENALTIES)) for number in range(3)]
    slots, logits = slots_of(sequences), random_logits(3, 3)
    expected = [token.token_id for token in sample(logits, [one.sampling_row() for one in sequences])]
    logits[1, 5] = torch.nan
    ids = draw(logits, slots, EVERYTHING, [0, 1, 2])
    assert ids.tolist() == [expected[0], NO_TOKEN, expected[2]]
    assert slots.batch(slots.rows(torch.arange(3))).ids.tolist() == [expected[0], 0, expected[2]]


def test_a_row_goes_no_further_than_its_pages() -> None:
    """One that has ended is computed once more, before the host knows."""
    one = sequence(0, SamplingParams(max_tokens=31))
    slots = slots_of([one])
    for step in range(40):
        draw(random_logits(step, 1), slots, EVERYTHING, [0])
    batch = slots.batch(slots.rows(torch.tensor([0])))
    assert batch.positions.tolist() == [one.num_reserved - 1]
    assert int(batch.cells) // 64 in one.pages


@pytest.mark.parametrize(("is_random", "is_sorted"), list(product([True, False], repeat=2)))
def test_what_a_step_must_do_is_what_any_row_needs(is_random: bool, is_sorted: bool) -> None:
    params = [
        SamplingParams(temperature=0.5 * is_random, top_k=5 * is_sorted),
        SamplingParams(temperature=0.0, presence_penalty=0.1),
    ]
    assert Drawing.of(row(params[0])) | Drawing.of(row(params[1])) == (
        is_random,
        is_random and is_sorted,
        True,
    )


def test_a_slot_knows_its_ids_and_no_more_words_than_needed() -> None:
    one = sequence(7, SamplingParams(max_tokens=90))
    words = slots_of([sequence(number, one.params) for number in range(8)]).words_of(one)
    assert isinstance(words, array)
    assert list(words[-one.length :]) == one.tokens(0, one.length)
