"""Settings of all model tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny matrices gain nothing from a second thread, and lose much when the machine is busy."""
    torch.set_num_threads(1)
