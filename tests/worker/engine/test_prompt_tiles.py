"""The tokens of prompts are cut into lots that a captured forward takes: each token once, in order."""

import random

import pytest

from llama_herd.worker.engine import prompt_tiles
from llama_herd.worker.engine.prompt_tiles import (
    TILE_TOKENS,
    TOKENS,
    TOKENS_A_TILE,
    Lot,
    Tile,
    lots_of,
    num_tiles,
)
from llama_herd.worker.engine.scheduler import Row
from llama_herd.worker.loading.loaded_model import LoadedModel
from tests.examples import seeds
from tests.worker.ways_to_draw import job_of


def row(model: LoadedModel, slot: int, start: int, num_tokens: int, **asked: object) -> Row:
    """The next tokens of a prompt in a slot; more are to come, unless it `is_complete`."""
    is_complete = bool(asked.pop("is_complete", False))
    job = job_of({"max_tokens": 4, **asked}, prompt_ids=(5,) * (start + num_tokens + (not is_complete)))
    one = model.maker.sequences(f"job-{slot}", job, now_ms=0)[0]
    one.slot, one.num_cached = slot, start
    return Row.of(one, num_tokens)


def tokens(lots: list[Lot]) -> list[tuple[int, int]]:
    """Slot and position of each token of the lots."""
    return [(one.slot, one.start + n) for lot in lots for one in lot.tiles for n in range(one.num_tokens)]


@pytest.mark.parametrize("seed", seeds(3, 30))
def test_each_token_but_the_last_of_a_complete_prompt_is_in_one_lot(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(prompt_tiles, "TOKENS", (16, 64, 128))
    rng = random.Random(seed)
    rows = [
        row(model, slot, rng.randrange(9), rng.randint(1, 90), is_complete=rng.random() < 0.5)
        for slot in range(rng.randint(1, 9))
    ]
    lots = lots_of(rows)
    counts = [one.num_tokens - one.is_complete for one in rows]
    assert tokens(lots) == [
        (one.sequence.slot, one.start + n) for one, num in zip(rows, counts, strict=True) for n in range(num)
    ]
    for lot in lots:
        assert all(0 < tile.num_tokens <= TILE_TOKENS for tile in lot.tiles)
        assert lot.num_tokens <= lot.bucket
        assert len(lot.tiles) < num_tiles(lot.bucket)
    assert all(lot.tiles for lot in lots) or len(lots) == 1


def test_rows_that_decode_are_an_empty_lot(model: LoadedModel) -> None:
    assert lots_of([row(model, 3, 7, 1, is_complete=True)]) == [Lot((), 0, 0)]


@pytest.mark.parametrize("bucket", TOKENS)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_least_forward_is_taken_that_has_room(model: LoadedModel, bucket: int, more: int) -> None:
    num_tokens = bucket + more
    sizes = [TILE_TOKENS] * (num_tokens // TILE_TOKENS) + [num_tokens % TILE_TOKENS]
    lots = lots_of([row(model, slot, 0, size) for slot, size in enumerate(sizes) if size])
    larger = [one for one in TOKENS if one >= num_tokens]
    assert [lot.bucket for lot in lots] == (larger[:1] or [TOKENS[0], TOKENS[-1]])


def test_many_short_prompts_take_a_larger_forward(model: LoadedModel) -> None:
    (lot,) = lots_of([row(model, slot, 0, 2) for slot in range(9)])
    assert (lot.num_tokens, lot.bucket) == (18, TOKENS[1])
    most = TOKENS[-1] // TOKENS_A_TILE
    lots = lots_of([row(model, slot, 0, 1) for slot in range(most + 3)])
    assert [len(lot.tiles) for lot in lots] == [3, most]


def test_scored_prompts_are_the_last_of_the_last_lot(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_tiles, "TOKENS", (128, 256))
    first, last = (row(model, slot, slot, 40, prompt_logprobs=1) for slot in (0, 2))
    *_, lot = lots_of([first, row(model, 1, 0, 400), last])
    assert tokens([lot])[-80:] == [(slot, slot + n) for slot in (0, 2) for n in range(40)]


def test_the_device_is_told_first_token_number_start_and_slot_of_each_tile() -> None:
    lot = Lot.of([Tile(slot=4, start=0, num_tokens=64), Tile(4, 64, 6), Tile(2, 9, 5)])
    words, num = lot.words(trash=7), num_tiles(128)
    assert lot.bucket == 128
    first, counts, starts, slots = (words[at : at + num] for at in range(0, 4 * num, num))
    assert first == [0, 64, 70] + [75] * (num - 3)
    assert counts == [64, 6, 5] + [0] * (num - 3)
    assert starts == [0, 64, 9] + [0] * (num - 3)
    assert slots == [4, 4, 2] + [7] * (num - 3)
