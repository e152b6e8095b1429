"""Settings of all model tests, and the tiny model."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.gpu.random_model import write_random_model
from benchmarks.shapes import random_config
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.shape.families import FAMILIES
from tests.model.forwards import VOCAB_SIZE
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
def family_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the file of a random model in blocks, of the family with a name; made once."""

    @cache
    def path(name: str) -> Path:
        family = next(one for one in FAMILIES if one.name == name)
        shape = random_config(
            hidden_size=256, num_layers=2, num_heads=4, num_kv_heads=2, ffn_size=256, vocab_size=VOCAB_SIZE
        )
        folder, config = tmp_path_factory.mktemp("family"), replace(shape, family=family)
        return write_random_model(folder / "random.gguf", config, GGMLType.Q8_0, torch.device("cpu"))

    return path


@pytest.fixture(scope="session")
def llama(gqa_file: Path) -> Llama:
    """The default tiny model: 4 heads on 2 kv heads, F32."""
    return load_tiny(gqa_file)
