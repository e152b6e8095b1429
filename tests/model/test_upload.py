"""Numbers of the host arrive as they are."""

from functools import partial

import pytest
import torch

from llama_herd.model.upload import send_rows, upload


@pytest.mark.parametrize("numbers", [[], [7], [-1, 0, 2**62], range(3, 6), (4, 5)])
def test_integers_arrive_as_they_are(numbers: list[int]) -> None:
    assert torch.equal(upload(numbers, "cpu"), torch.tensor(list(numbers), dtype=torch.int64))


@pytest.mark.parametrize("numbers", [[], [0.1, -3e38, 1e-300], [float("-inf"), 2]])
def test_floats_are_rounded_as_torch_rounds_them(numbers: list[float]) -> None:
    assert torch.equal(upload(numbers, "cpu", torch.float32), torch.tensor(numbers, dtype=torch.float32))


@pytest.mark.parametrize("rows", [[[1, 2], [3, 4]], [range(3)], [(), ()]])
def test_rows_stay_rows(rows: list[list[int]]) -> None:
    expected = torch.tensor([list(row) for row in rows], dtype=torch.int64)
    assert torch.equal(send_rows(rows, partial(upload, device="cpu")), expected)
