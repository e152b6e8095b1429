"""Penalties, biases and forbidden ends against transformers' processors and plain arithmetic."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from llama_herd.tasks.protocol.sampling import SamplingParams
from tests.closeness import assert_close
from tests.worker.engine.sampling.rows import row, ruled

V = 12
PROMPT, OUTPUT = (1, 2, 2, 3), (3, 4, 4, 4)


def logits() -> torch.Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(1))


def changed(output: Sequence[int] = OUTPUT, **fields: object) -> torch.Tensor:
    params = SamplingParams.model_validate(fields)
    return ruled(logits()[None], [row(params, prompt_ids=PROMPT, ids=output, eos_ids={0})])[0]


def oracle(penalty: float) -> Callable[[Tensor, Tensor], Tensor]:
    """transformers' processor."""
    from transformers import RepetitionPenaltyLogitsProcessor

    processor: Callable[[Tensor, Tensor], Tensor] = RepetitionPenaltyLogitsProcessor(penalty)
    return processor


@pytest.mark.long
def test_repetition_penalty_equals_transformers() -> None:
    expected = oracle(1.7)(torch.tensor([[*PROMPT, *OUTPUT]]), logits()[None].clone())[0]
    assert_close(changed(repetition_penalty=1.7), expected)


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    expected = logits()
    expected[3] -= 0.5 + 0.25
    expected[4] -= 0.5 + 0.25 * 3
    assert_close(changed(presence_penalty=0.5, frequency_penalty=0.25), expected)


def test_penalties_look_at_the_last_tokens_only() -> None:
    expected = logits()
    expected[4] -= 2.0
    assert_close(changed(presence_penalty=2.0, repeat_last_n=2), expected)
    assert_close(changed(presence_penalty=2.0, repeat_last_n=0), logits())


@pytest.mark.long
def test_the_repetition_penalty_looks_at_as_many_as_transformers_is_shown() -> None:
    for num_last in (0, 1, 4, 6, 8, 99):
        last = [*PROMPT, *OUTPUT][-num_last:] if num_last else []
        expected = oracle(1.5)(torch.tensor([last], dtype=torch.int64), logits()[None].clone())[0]
        assert_close(changed(repetition_penalty=1.5, repeat_last_n=num_last), expected)


def test_biases_are_added() -> None:
    expected = logits()
    expected[7] += 5
    expected[1] -= 100
    assert_close(changed(logit_bias={"7": 5.0, 1: -100.0}), expected)


@pytest.mark.parametrize(("num_ids", "is_held_back"), [(0, True), (3, True), (4, False)])
def test_no_end_may_come_before_min_tokens(num_ids: int, is_held_back: bool) -> None:
    held = changed(OUTPUT[:num_ids], min_tokens=4, stop_token_ids=[5, 6]).isinf()
    assert held.nonzero().flatten().tolist() == ([0, 5, 6] if is_held_back else [])


def test_logits_without_rules_are_taken_as_they_are() -> None:
    plain = logits()[None]
    assert ruled(plain, [row(SamplingParams(), prompt_ids=PROMPT, ids=OUTPUT)]) is plain


def test_rows_do_not_leak_into_each_other() -> None:
    fields: list[dict[str, object]] = [
        {},
        {"repetition_penalty": 2.0},
        {"presence_penalty": 1.0, "repeat_last_n": 1},
        {"logit_bias": {2: 3.0}},
        {"min_tokens": 9, "stop_token_ids": [8]},
    ]
    rows = [
        row(SamplingParams.model_validate(some), prompt_ids=PROMPT, ids=OUTPUT, eos_ids={0})
        for some in fields
    ]
    together = ruled(logits().expand(len(rows), -1), rows)
    alone = torch.cat([ruled(logits()[None], [one]) for one in rows])
    assert torch.equal(together, alone)
