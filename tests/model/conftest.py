"""Settings of all model tests, and the tiny model."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_herd.model.kernels.native import Kernels
from llama_herd.model.llama2 import Llama
from tests.model.native_library import DISTINCT_SETS, kernels_of
from tests.tiny import WIDE, load_tiny, write_tiny_gguf


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Random tensors are the same in every run. torch.manual_seed sees to GPUs too, and notes who called."""
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny matrices gain nothing from a second thread, and lose much when the machine is busy."""
    torch.set_num_threads(1)


@pytest.fixture
def threads() -> Iterator[None]:
    """A test that changes torch's threads; they are as before in the end."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=DISTINCT_SETS, ids=lambda set: set.name)
def set_kernels(request: pytest.FixtureRequest, kernels_folder: Path) -> Kernels:
    """The kernels of each instruction set."""
    return kernels_of(request.param, kernels_folder)


@pytest.fixture(scope="session")
def gqa_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gqa") / "tiny.gguf")


@pytest.fixture(scope="session")
def wide_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gives the file of a type whose rows have blocks of any type; made once."""

    @cache
    def path(type: str, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("wide")
        return write_tiny_gguf(folder / "tiny.gguf", type=type, **{**WIDE, **changes})

    return path


@pytest.fixture(scope="session")
def llama(gqa_file: Path) -> Llama:
    """The default tiny model: 4 heads on 2 kv heads, F32."""
    return load_tiny(gqa_file)
