"""Settings of all model tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Random tensors are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny matrices gain nothing from a second thread, and lose much when the machine is busy."""
    torch.set_num_threads(1)
