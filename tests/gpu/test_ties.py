"""What may differ between devices, tried without one."""

import pytest
import torch
from torch import Tensor

from tests.gpu.ties import first_real_difference

EXACT = [[1, 2, 3, 4], [5, 6, 7, 8]]


def logits_after(ids: list[int]) -> Tensor:
    """A tie after two ids, and none elsewhere."""
    return torch.tensor([1.0, 0.99999, 0.0]) if len(ids) == 2 else torch.tensor([1.0, 0.5, 0.0])


def difference(ours: list[list[int]]) -> str:
    return first_real_difference(ours, EXACT, [[0], [0]], logits_after, tolerance=1e-4)


def test_equal_ids_are_equal() -> None:
    assert difference(EXACT) == ""


def test_a_tie_may_fall_the_other_way_and_what_follows_is_not_compared() -> None:
    assert difference([EXACT[0], [5, 9, 9, 9]]) == ""


def test_a_token_that_is_clearly_worse_is_a_difference() -> None:
    assert difference([EXACT[0], [5, 6, 9, 8]]) == "prompt 1, token 2: 9 for 7, which is 0.5 ahead"


def test_ties_everywhere_prove_nothing() -> None:
    with pytest.raises(ValueError, match="only 2 ids could be compared"):
        difference([[1, 9, 9, 9], [5, 9, 9, 9]])
