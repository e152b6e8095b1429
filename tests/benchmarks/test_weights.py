"""The benchmark of weights runs, on small shapes."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.gpu.random_model import write_random_model
from benchmarks.shapes import random_shape
from benchmarks.speed.files import PRESETS
from benchmarks.weights import Setting, speed, start, tables, type_speed

pytestmark = pytest.mark.program

SMALL = random_shape("small", hidden_size=256, num_layers=2, num_heads=4, ffn_size=512)


def test_a_type_is_read_as_the_gguf_package_reads_it() -> None:
    measured = type_speed(GGMLType.Q4_K)
    assert (measured["bytes_per_weight"], measured["max_error"]) == (0.562, 0.0)
    assert min(measured["values_per_s"], measured["gguf_values_per_s"]) > 0


@pytest.mark.parametrize(
    "preset",
    ["Q4_K_M", *(pytest.param(name, marks=pytest.mark.slow) for name in PRESETS if name != "Q4_K_M")],
)
def test_a_command_computes_a_token_of_a_file_of_each_preset(tmp_path: Path, preset: str) -> None:
    assert SMALL.config is not None
    path = write_random_model(tmp_path / "m.gguf", SMALL.config, PRESETS[preset], torch.device("cpu"))
    measured = start(path, Setting("in blocks", {"HERD_WEIGHTS": "quantized"}))
    assert min(measured.values()) > 0


def test_all_of_it_can_be_shown(tmp_path: Path) -> None:
    assert SMALL.config is not None
    path = write_random_model(tmp_path / "m.gguf", SMALL.config, GGMLType.Q8_0, torch.device("cpu"))
    setting = Setting("float32", {"HERD_DTYPE": "float32"})
    measured = {"settings": setting.name, **speed(path, setting)}
    started = {"file": "Q8_0", "bytes": 1, "settings": "defaults", "seconds": 1.0, "peak_bytes": 1}
    report = {"types": [type_speed(GGMLType.BF16)], "starts": [started], "speeds": [measured]}
    assert [len(table.rows) for table in tables(report)] == [1, 1, 1]
