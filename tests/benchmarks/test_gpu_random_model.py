"""Files of random weights: what they hold is what our own loader, and the gguf package, read."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.gpu.device_weights import draw_weights_on, write_hollow_model
from benchmarks.gpu.random_model import q8_0_blocks, random_values, write_random_model
from benchmarks.gpu.scale import DRY
from benchmarks.random_blocks import HALVES
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.model_file import expected_shapes
from llama_herd.model.kernels.dequantize import dequantize

pytestmark = pytest.mark.long

CPU = torch.device("cpu")


def test_a_written_model_holds_the_values_that_were_drawn(tmp_path: Path) -> None:
    path = write_random_model(tmp_path / "random.gguf", DRY.config, GGMLType.BF16, CPU)
    with GGUFModel.open(path) as file:
        assert file.config == DRY.config
        for seed, (name, shape) in enumerate(expected_shapes(DRY.config).items()):
            if name.endswith(("attn_q.weight", "attn_k.weight", "rope_freqs.weight")):
                continue  # these are reordered, or not there
            weight = file.weight(name)
            values = dequantize(weight.blocks, weight.type).view(weight.shape)
            drawn = random_values(shape, seed if seed < 3 else seed - 1, CPU)
            assert (values - drawn).norm() / drawn.norm() < 2**-8, name


@pytest.mark.parametrize("type", HALVES)
def test_random_blocks_spread_as_drawn_values_and_lean_to_no_side(tmp_path: Path, type: GGMLType) -> None:
    path = write_random_model(tmp_path / "random.gguf", DRY.config, type, CPU)
    with GGUFModel.open(path) as file:
        for name, shape in expected_shapes(DRY.config).items():
            if len(shape) == 2:
                weight = file.weight(name)
                values = dequantize(weight.blocks, weight.type).view(shape) * shape[1] ** 0.5
                assert 0.8 < values.std() < 1.4, name
                assert values.mean().abs() < 0.05, name


def test_q8_0_blocks_are_those_of_the_gguf_package() -> None:
    values = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    values[3, 32:64] = 0
    expected = gguf.quants.quantize(values.numpy(), GGMLType.Q8_0)
    assert np.array_equal(q8_0_blocks(values).numpy(), expected)


@pytest.mark.parametrize("type", [GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q6_K])
def test_a_hollow_model_takes_no_room_and_its_weights_are_drawn(
    tmp_path: Path, type: GGMLType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GGUFModel, "weight", GGUFModel.weight)  # put back afterwards
    path = write_hollow_model(tmp_path / "hollow.gguf", DRY.config, lambda name: type)
    full = write_random_model(tmp_path / "full.gguf", DRY.config, type, CPU)
    assert path.stat().st_size == full.stat().st_size
    assert path.stat().st_blocks * 512 < full.stat().st_size / 2
    draw_weights_on(CPU)
    with GGUFModel.open(path) as file:
        for name, shape in expected_shapes(DRY.config).items():
            if name in file:
                weight = file.weight(name)
                values = dequantize(weight.blocks, weight.type).view(weight.shape)
                assert weight.shape == shape
                spread = 0.1 if len(shape) == 1 else shape[-1] ** -0.5
                assert 0.8 * spread < values.std() < 1.4 * spread, name


def test_every_prompt_can_be_encoded(tmp_path: Path) -> None:
    path = write_random_model(tmp_path / "random.gguf", DRY.config, GGMLType.Q8_0, CPU)
    with GGUFModel.open(path) as file:
        tokenizer = file.read_tokenizer()
    assert tokenizer.vocab_size == DRY.config.vocab_size
    assert tokenizer.decode(tokenizer.encode("w1 w2 any text", add_bos=False)) == " w1 w2 any text"
