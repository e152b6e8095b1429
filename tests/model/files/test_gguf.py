"""Files that gguf's own writer makes read equal to what was written; others get one clear line."""

import os
import struct
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf import GGUFFile
from llama_herd.model.files.safetensors import SafetensorsFile
from llama_herd.model.files.tensor_file import TensorFile
from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from tests.model.open_files import open_files

SCALARS = {
    "a.u8": ("uint8", 255),
    "a.i8": ("int8", -128),
    "a.u16": ("uint16", 65_535),
    "a.i16": ("int16", -32_768),
    "a.u32": ("uint32", 2**32 - 1),
    "a.i32": ("int32", -(2**31)),
    "a.u64": ("uint64", 2**64 - 1),
    "a.i64": ("int64", -(2**63)),
    "a.f32": ("float32", 1e-5),
    "a.f64": ("float64", 0.1),
    "a.yes": ("bool", True),
    "a.no": ("bool", False),
    "a.text": ("string", "Grüße, 你好 🦙"),
}
ARRAYS: dict[str, list[int] | list[float] | list[bool] | tuple[str, ...]] = {
    "b.ints": [-1, 0, 2**31 - 1],
    "b.floats": [0.5, -2.0],
    "b.flags": [True, False, True],
    "b.texts": ("▁the", "", "🤖"),
}
TYPES = SUPPORTED_TYPES


def write_everything(path: Path, alignment: int = 32) -> dict[str, np.ndarray]:
    """Write a file with each kind of value and of tensor; returns the tensors' bytes as rows."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, (kind, value) in SCALARS.items():
        getattr(writer, f"add_{kind}")(key, value)
    for key, values in ARRAYS.items():
        writer.add_array(key, values)
    rows = {}
    for kind in TYPES:
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        row_bytes = 256 // block_values * block_bytes
        rows[kind.name] = rng.integers(0, 256, (3, row_bytes), dtype=np.uint8)
        writer.add_tensor(kind.name, rows[kind.name], raw_dtype=kind)
    rows["vector"] = rng.standard_normal(5).astype(np.float32).view(np.uint8)[None]
    writer.add_tensor("vector", rows["vector"][0].view(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rows


def assert_reads_equal(path: Path, rows: dict[str, np.ndarray]) -> None:
    with GGUFFile.open(path) as file:
        for key, (_, value) in SCALARS.items():
            assert file.metadata[key] == value
            assert type(file.metadata[key]) is type(value)
        for key, values in ARRAYS.items():
            read = file.metadata[key]
            assert (read.tolist() if isinstance(read, np.ndarray) else read) == values
        assert list(file.tensors) == list(rows)
        for name, expected in rows.items():
            np.testing.assert_array_equal(file.rows(name)[:].numpy(), expected)


def test_what_was_written_reads_equal(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    assert_reads_equal(path, write_everything(path))
    with GGUFFile.open(path) as file:
        assert file.tensors["Q8_0"].shape == (3, 256)
        assert file.tensors["Q8_0"].type is GGMLType.Q8_0
        assert file.tensors["vector"].shape == (5,)


def test_another_alignment_reads_equal(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    rows = write_everything(path, alignment=64)
    assert_reads_equal(path, rows)
    with GGUFFile.open(path) as file:
        assert all(info.offset % 64 == 0 for info in file.tensors.values())
        assert any(info.num_bytes % 64 for info in file.tensors.values())


def test_version_2_reads_equal(tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    rows = write_everything(path)
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I", 2)
    path.write_bytes(content)
    assert_reads_equal(path, rows)


def test_what_was_read_stays_good_after_close_and_writing_to_it_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    expected = write_everything(path)["Q8_0"]
    content = path.read_bytes()
    with warnings.catch_warnings(), GGUFFile.open(path) as file:
        warnings.simplefilter("error")
        blocks = file.rows("Q8_0")[:]
    np.testing.assert_array_equal(blocks.numpy(), expected)
    blocks.zero_()
    assert path.read_bytes() == content


def test_metadata_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    write_everything(path)
    file = GGUFFile.open(path)
    assert path in open_files()
    file.close()
    assert path not in open_files()
    assert file.metadata.array("b.ints", "i", 3).tolist() == ARRAYS["b.ints"]


def test_a_file_that_is_refused_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    write_everything(path)
    os.truncate(path, path.stat().st_size - 64)
    with pytest.raises(ModelFileError, match="ends at data byte"):
        GGUFFile.open(path)
    assert path not in open_files()


def test_a_file_that_is_cut_while_it_is_open_is_refused_by_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    expected = write_everything(path)
    with GGUFFile.open(path) as file:
        os.truncate(path, file.tensors["Q8_0"].offset + 1)
        np.testing.assert_array_equal(file.rows("F16")[:].numpy(), expected["F16"])
        with pytest.raises(
            ModelFileError, match=r"all\.gguf: tensor 'Q8_0' ended at byte \d+ of \d+ .* cut short"
        ):
            file.rows("Q8_0")[:]


def test_a_file_that_is_replaced_while_it_is_open_is_read_as_it_was(tmp_path: Path) -> None:
    path, other = tmp_path / "all.gguf", tmp_path / "other.gguf"
    expected = write_everything(path)["Q8_0"]
    other.write_text("something else")
    with GGUFFile.open(path) as file:
        other.replace(path)
        np.testing.assert_array_equal(file.rows("Q8_0")[:].numpy(), expected)


def test_rows_are_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    expected = write_everything(path)
    with GGUFFile.open(path) as file:
        for name, rows in expected.items():
            assert len(file.rows(name)) == len(rows)
            np.testing.assert_array_equal(file.rows(name)[1:9].numpy(), rows[1:9])


def test_a_closed_file_gives_no_views(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    write_everything(path)
    with GGUFFile.open(path) as file:
        pass
    with pytest.raises(ValueError, match=r"all\.gguf is closed"):
        file.rows("Q8_0")[:]


FOREIGN = {
    "safetensors": (struct.pack("<Q", 16) + b'{"__metadata__":', "a safetensors file.*Give the folder"),
    "zip": (b"PK\x03\x04" + bytes(40), "a zip or PyTorch file.*hf download"),
    "pickle": (b"\x80\x02\x8a\x0a" + bytes(40), "a PyTorch pickle.*hf download"),
    "ggml v1": (struct.pack("<II", 0x67676D6C, 32_000) + bytes(40), "a GGML file, older than GGUF"),
    "ggjt": (struct.pack("<II", 0x67676A74, 3) + bytes(40), "a GGJT file, older than GGUF"),
    "gzip": (b"\x1f\x8b" + bytes(40), "a gzip archive.*Unpack"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer.*git lfs pull"),
    "web page": (b"<!DOCTYPE html><html>", "a web page.*hf download"),
    "nothing": (b"", "an empty file.*Fetch it again"),
    "zeros": (bytes(100), "begins with zeros.*Fetch it again"),
    "noise": (b"once upon a time there was", "not a model file known here.*GGUF"),
}


@pytest.mark.parametrize(("content", "message"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_file_is_named_with_the_fix(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        GGUFFile.open(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [GGUFFile, SafetensorsFile])
def test_a_path_without_a_regular_file_is_named_with_the_fix(tmp_path: Path, kind: type[TensorFile]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        ("nowhere", "no such file"),
        (".", "not a regular file"),
        ("pipe", "not a regular file"),
    ):
        with pytest.raises(ModelFileError, match=f"{message}. Give the path"):
            kind.open(tmp_path / path)


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "all.gguf"
    write_everything(path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match=r"all\.gguf: cannot be read: Permission denied"):
        GGUFFile.open(path)


def test_blocks_are_torch_bytes(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    write_everything(path)
    with GGUFFile.open(path) as file:
        assert file.rows("vector")[:].shape == (1, 20)
        assert file.rows("F16")[:].dtype == torch.uint8
