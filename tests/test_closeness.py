"""What is not close is told where, and how far away it is."""

import pytest
import torch

from tests.closeness import TOLERANCES, assert_close

NAN, INF = float("nan"), float("inf")


def test_what_is_within_either_tolerance_is_close() -> None:
    assert_close(torch.tensor([1.0, 100.0, INF]), torch.tensor([1.5, 105.0, INF]), atol=0.5, rtol=0.05)
    assert_close(torch.tensor(1.0), torch.tensor(1.0 + 1e-5))
    assert_close(torch.tensor([]), torch.tensor([]))


@pytest.mark.parametrize(
    ("found", "expected"),
    [(0.6, 0.0), (106.0, 100.0), (NAN, 1.0), (1.0, NAN), (NAN, NAN), (INF, 1.0), (1.0, INF), (INF, -INF)],
)
def test_one_number_beyond_both_tolerances_is_not(found: float, expected: float) -> None:
    with pytest.raises(AssertionError, match="1 of 3 numbers are not close"):
        assert_close(torch.tensor([1.0, found, INF]), torch.tensor([1.0, expected, INF]), atol=0.5, rtol=0.05)


def test_the_worst_is_told_with_its_place() -> None:
    found, expected = torch.zeros(2, 3), torch.zeros(2, 3)
    found[0, 1], found[1, 2] = 0.25, -0.5
    with pytest.raises(
        AssertionError, match=r"2 of 6 .* the worst at \(1, 2\): -0\.5 and not 0\.0, 0\.5 away"
    ):
        assert_close(found, expected)
    found[0, 0] = NAN
    with pytest.raises(AssertionError, match=r"3 of 6 .* the worst at \(0, 0\): nan and not 0\.0"):
        assert_close(found, expected)


@pytest.mark.parametrize(
    "other", [torch.zeros(3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.float64), torch.zeros(2).half()]
)
def test_another_shape_or_type_is_not_close(other: torch.Tensor) -> None:
    for one, two in ((torch.zeros(2), other), (other, torch.zeros(2))):
        with pytest.raises(AssertionError):
            assert_close(one, two, atol=1, rtol=1)


def test_one_tolerance_says_nothing_of_the_other() -> None:
    with pytest.raises(AssertionError, match="both"):
        assert_close(torch.zeros(2), torch.zeros(2), atol=1)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_without_tolerances_those_of_torch_hold(dtype: torch.dtype) -> None:
    assert TOLERANCES[dtype] == torch.testing._comparison.default_tolerances(dtype)
