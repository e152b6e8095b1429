"""Penalties that are kept up to date token by token are those of their plain definition."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sampling import rules
from tests.examples import seeds
from tests.worker.engine.sampling.rows import row, ruled

V = 40


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        repetition_penalty=rng.choice([1.0, 1.3, 0.7]),
        presence_penalty=rng.choice([0.0, 0.5, -0.3]),
        frequency_penalty=rng.choice([0.0, 0.1, -0.7]),
        repeat_last_n=rng.choice([-1, 0, 1, 2, 5, 13, 64, 1000]),
    )


def plainly_penalised(logits: Tensor, params: SamplingParams, prompt: list[int], output: list[int]) -> Tensor:
    """One row's logits (V,) after its penalties, from all of its tokens."""
    logits = logits.clone()
    text, num_last = [*prompt, *output], params.repeat_last_n
    first = 0 if num_last < 0 else max(0, len(text) - num_last)
    for token_id in set(text[first:]) if params.repetition_penalty != 1 else ():
        was, penalty = logits[token_id], torch.tensor(params.repetition_penalty)
        logits[token_id] = was / penalty if was > 0 else was * penalty
    for token_id, count in Counter(output[max(0, first - len(prompt)) :]).items():
        logits[token_id] += torch.tensor(-params.presence_penalty - params.frequency_penalty * count)
    return logits


def tokens(rng: random.Random, num_tokens: int) -> list[int]:
    """Some come again and again."""
    return rng.choices(range(V), weights=[1 + 30 * (n < 4) for n in range(V)], k=num_tokens)


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_each_token_penalises_as_the_definition_says(seed: int) -> None:
    rng = random.Random(seed)
    params, prompt, output = random_params(rng), tokens(rng, rng.choice([0, 1, 9, 40])), tokens(rng, 50)
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed))
    grown = row(params, prompt_ids=prompt)
    for num_drawn in range(len(output) + 1):
        expected = plainly_penalised(logits, params, prompt, output[:num_drawn])
        assert torch.equal(ruled(logits[None], [grown])[0], expected)
        if grown.penalties is not None and num_drawn < len(output):
            grown.penalties.add(output[num_drawn])


@pytest.mark.parametrize("most_cells", [1, 60, 10**6], ids=["one by one", "some", "all"])
def test_rows_of_one_batch_are_penalised_each_for_itself(
    most_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MOST_CELLS", most_cells)
    rng = random.Random(7)
    logits = torch.randn(20, V, generator=torch.Generator().manual_seed(7))
    texts = [(random_params(rng), tokens(rng, rng.randint(0, 40)), tokens(rng, 9)) for _ in logits]
    rows = [row(params, prompt_ids=prompt, ids=output) for params, prompt, output in texts]
    expected = [plainly_penalised(one, *text) for one, text in zip(logits, texts, strict=True)]
    assert torch.equal(ruled(logits, rows), torch.stack(expected))


@pytest.mark.parametrize("shape", ["expanded", "transposed"])
def test_logits_may_lie_in_memory_in_any_way(shape: str) -> None:
    one = torch.randn(V, generator=torch.Generator().manual_seed(1))
    logits = one.expand(3, V) if shape == "expanded" else torch.stack([one] * 3, dim=1).T
    params, prompt = SamplingParams(repetition_penalty=2.0), [3, 5]
    rows = [row(params, prompt_ids=prompt), row(SamplingParams()), row(params, prompt_ids=prompt)]
    penalised = plainly_penalised(one, params, prompt, [])
    assert torch.equal(ruled(logits, rows), torch.stack([penalised, one, penalised]))


@pytest.mark.parametrize("num_last", [-1, 3, 100])
def test_drawing_changes_nothing_that_penalties_know(num_last: int) -> None:
    """So a forward that broke off may be repeated."""
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.4, repeat_last_n=num_last)
    one = row(params, prompt_ids=[1, 2, 3], ids=[3, 4, 4])
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ruled(logits, [one]), ruled(logits, [one]))


def looked_at(params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> set[int]:
    penalties = row(params, prompt_ids=prompt, ids=output).penalties
    assert penalties is not None
    assert len(set(penalties.ids)) == len(penalties.ids) == len(penalties.addends)
    return set(penalties.ids)


def test_what_nothing_is_done_to_is_not_kept() -> None:
    """A long prompt costs nothing where only the output is penalised; nor does what has left the window."""
    assert looked_at(SamplingParams(presence_penalty=1.0), range(30), [31, 32]) == {31, 32}
    windowed = SamplingParams(repetition_penalty=2.0, repeat_last_n=3)
    assert looked_at(windowed, range(30), [31, 32]) == {29, 31, 32}
    assert row(SamplingParams(), prompt_ids=range(30)).penalties is None
