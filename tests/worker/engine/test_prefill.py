"""The tokens of prompts are cut as captured forwards take them: each token once, in order."""

import random

import pytest

from llama_herd.worker.engine.prefill import (
    SPAN_TOKENS,
    TOKENS,
    TOKENS_A_SPAN,
    Prefill,
    PromptSpan,
    num_spans,
    prefills_of,
)
from llama_herd.worker.engine.runner import Row
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


def tokens(prefills: list[Prefill]) -> list[tuple[int, int]]:
    """Slot and position of each token of the prefills."""
    return [
        (one.slot, one.start + n)
        for prefill in prefills
        for one in prefill.spans
        for n in range(one.num_tokens)
    ]


@pytest.mark.parametrize("seed", seeds(3, 30))
def test_each_token_but_the_last_of_a_complete_prompt_is_in_one_prefill(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("llama_herd.worker.engine.prefill.TOKENS", (16, 64, 128))
    rng = random.Random(seed)
    rows = [
        row(model, slot, rng.randrange(9), rng.randint(1, 90), is_complete=rng.random() < 0.5)
        for slot in range(rng.randint(1, 9))
    ]
    prefills = prefills_of(rows)
    counts = [one.num_tokens - one.is_complete for one in rows]
    assert tokens(prefills) == [
        (one.sequence.slot, one.start + n) for one, num in zip(rows, counts, strict=True) for n in range(num)
    ]
    for prefill in prefills:
        assert all(0 < span.num_tokens <= SPAN_TOKENS for span in prefill.spans)
        assert prefill.num_tokens <= prefill.bucket
        assert len(prefill.spans) < num_spans(prefill.bucket)
    assert all(prefill.spans for prefill in prefills) or len(prefills) == 1


def test_rows_that_decode_are_an_empty_prefill(model: LoadedModel) -> None:
    assert prefills_of([row(model, 3, 7, 1, is_complete=True)]) == [Prefill((), 0, 0)]


@pytest.mark.parametrize("bucket", TOKENS)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_least_forward_is_taken_that_has_room(model: LoadedModel, bucket: int, more: int) -> None:
    num_tokens = bucket + more
    sizes = [SPAN_TOKENS] * (num_tokens // SPAN_TOKENS) + [num_tokens % SPAN_TOKENS]
    prefills = prefills_of([row(model, slot, 0, size) for slot, size in enumerate(sizes) if size])
    larger = [one for one in TOKENS if one >= num_tokens]
    assert [prefill.bucket for prefill in prefills] == (larger[:1] or [TOKENS[0], TOKENS[-1]])


def test_many_short_prompts_take_a_larger_forward(model: LoadedModel) -> None:
    (prefill,) = prefills_of([row(model, slot, 0, 2) for slot in range(9)])
    assert (prefill.num_tokens, prefill.bucket) == (18, TOKENS[1])
    most = TOKENS[-1] // TOKENS_A_SPAN
    prefills = prefills_of([row(model, slot, 0, 1) for slot in range(most + 3)])
    assert [len(prefill.spans) for prefill in prefills] == [3, most]


def test_scored_prompts_are_the_last_of_the_last_prefill(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_herd.worker.engine.prefill.TOKENS", (128, 256))
    first, last = (row(model, slot, slot, 40, prompt_logprobs=1) for slot in (0, 2))
    *_, prefill = prefills_of([first, row(model, 1, 0, 400), last])
    assert tokens([prefill])[-80:] == [(slot, slot + n) for slot in (0, 2) for n in range(40)]


def test_the_device_is_told_first_token_number_start_and_slot_of_each_span() -> None:
    prefill = Prefill.of(
        [PromptSpan(slot=4, start=0, num_tokens=64), PromptSpan(4, 64, 6), PromptSpan(2, 9, 5)]
    )
    words, num = prefill.words(trash=7), num_spans(128)
    assert prefill.bucket == 128
    first, counts, starts, slots = (words[at : at + num] for at in range(0, 4 * num, num))
    assert first == [0, 64, 70] + [75] * (num - 3)
    assert counts == [64, 6, 5] + [0] * (num - 3)
    assert starts == [0, 64, 9] + [0] * (num - 3)
    assert slots == [4, 4, 2] + [7] * (num - 3)
