"""The formulas against a table that was computed apart from them: a card of 4.3 TB/s and 788 TFLOP/s."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.floors import Floors, Format
from benchmarks.shapes import LLAMA_2_7B, random_config
from benchmarks.speed.files import PRESETS, RandomFile, weight_bytes
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_model import GGUFModel

pytestmark = pytest.mark.long

SHAPE_13B = replace(
    LLAMA_2_7B, hidden_size=5120, num_layers=40, num_heads=40, num_kv_heads=40, ffn_size=13_824
)


def floors(format: Format = Format.BF16, config: LlamaConfig = LLAMA_2_7B, kv_value_bytes: int = 2) -> Floors:
    return Floors(config, format, bytes_per_s=4.3e12, flop_per_s=788e12, kv_value_bytes=kv_value_bytes)


def as_printed(value: float, printed: float) -> bool:
    """Whether a value is the printed one, which has two decimals."""
    return value == pytest.approx(printed, abs=0.0051)


@pytest.mark.parametrize(
    ("format", "num_rows", "context", "milliseconds"),
    [
        (Format.BF16, 1, 512, 3.14),
        (Format.BF16, 64, 512, 7.08),
        (Format.BF16, 256, 512, 20.31),
        (Format.BF16, 32, 4096, 19.06),
        (Format.Q8_0, 1, 512, 1.70),
        (Format.Q8_0, 64, 1024, 9.63),
        (Format.Q8_0, 128, 512, 10.15),
        (Format.Q4_0, 1, 512, 0.93),
        (Format.Q4_0, 64, 512, 5.08),
        (Format.Q4_0, 8, 2048, 2.87),
    ],
)
def test_a_decode_step_of_7b(format: Format, num_rows: int, context: int, milliseconds: float) -> None:
    assert as_printed(1000 * floors(format).decode_s(num_rows, context), milliseconds)


@pytest.mark.parametrize(
    ("format", "num_rows", "context", "milliseconds"),
    [(Format.BF16, 1, 512, 6.08), (Format.Q8_0, 64, 1024, 15.67), (Format.Q4_0, 1, 4096, 2.47)],
)
def test_a_decode_step_of_13b(format: Format, num_rows: int, context: int, milliseconds: float) -> None:
    assert as_printed(1000 * floors(format, SHAPE_13B).decode_s(num_rows, context), milliseconds)


@pytest.mark.parametrize(
    ("config", "num_prompts", "length", "milliseconds"),
    [
        (LLAMA_2_7B, 1, 512, 8.50),
        (LLAMA_2_7B, 8, 512, 68.0),
        (LLAMA_2_7B, 32, 1024, 549.8),
        (SHAPE_13B, 1, 512, 16.6),
    ],
)
def test_a_prefill(config: LlamaConfig, num_prompts: int, length: int, milliseconds: float) -> None:
    seconds = floors(config=config).prefill_s(num_prompts, length)
    assert 1000 * seconds == pytest.approx(milliseconds, abs=0.051)


@pytest.mark.parametrize(
    ("num_rows", "kv_value_bytes", "tokens_per_s"),
    [(64, 2, 8_970), (128, 2, 11_430), (256, 2, 12_460), (256, 1, 17_620)],
)
def test_saturation(num_rows: int, kv_value_bytes: int, tokens_per_s: float) -> None:
    rate = floors(kv_value_bytes=kv_value_bytes).saturation_tokens_per_s(num_rows, 256, 256)
    assert rate == pytest.approx(tokens_per_s, abs=10)


def test_weights_and_keys() -> None:
    formats = Format.BF16, Format.Q8_0, Format.Q4_0
    gigabytes = [floors(format).weight_bytes / 1e9 for format in formats]
    assert gigabytes == pytest.approx([13.21, 7.02, 3.75], abs=0.01)
    assert floors().kv_bytes == 524_288
    assert floors(config=SHAPE_13B).kv_bytes == 819_200


@pytest.mark.parametrize("preset", PRESETS)
def test_the_weights_of_a_step_are_those_of_a_file_but_for_the_embedding(tmp_path: Path, preset: str) -> None:
    config = random_config(hidden_size=256, num_layers=2, num_heads=4, ffn_size=768, vocab_size=2_048)
    path = RandomFile("small", config, preset).write(tmp_path)
    stored = weight_bytes(path)
    with GGUFModel.open(path) as model:
        embedding = model.config.vocab_size * model.config.hidden_size
    assert 0 < stored < path.stat().st_size - embedding / 3
    if preset in Format.__members__:
        assert floors(Format[preset], config).weight_bytes == pytest.approx(stored, rel=0.01)
    assert Floors(config, stored, 1.0, 1.0).weight_bytes == stored
