"""Torch has one thread in a forward of few tokens, and as many as before after it."""

from collections.abc import Iterator

import pytest
import torch

from llama_herd.worker.engine.model_runner import ONE_THREAD_TOKENS, one_for_few


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(1, 1), (ONE_THREAD_TOKENS, 1), (ONE_THREAD_TOKENS + 1, 2)]
)
def test_few_tokens_take_one_thread(num_tokens: int, expected: int) -> None:
    with one_for_few(num_tokens):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2


def test_a_forward_that_fails_leaves_all_threads() -> None:
    with pytest.raises(RuntimeError, match="no memory"), one_for_few(1):
        raise RuntimeError("no memory")
    assert torch.get_num_threads() == 2
