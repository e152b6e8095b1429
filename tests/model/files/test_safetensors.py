"""Safetensors files are read byte for byte; one that is wrong anywhere is refused by name."""

import json
import os
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llama_herd.errors import ModelFileError
from llama_herd.model.files.safetensors import SafetensorsFile

DATA = bytes(range(32))
GOOD: dict[str, Any] = {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}


def raw_safetensors(header: Mapping[str, object] | str, data: bytes = DATA) -> bytes:
    text = header if isinstance(header, str) else json.dumps(header)
    return struct.pack("<Q", len(text.encode())) + text.encode() + data


def one_tensor(**changes: object) -> bytes:
    """A file of the tensor 'w', right but for the changes; None takes a key away."""
    entry = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return raw_safetensors({"w": entry})


def two_tensors(first: tuple[int, int], second: tuple[int, int], num_bytes: int = 64) -> bytes:
    header = {name: {**GOOD, "data_offsets": at} for name, at in (("v", first), ("w", second))}
    return raw_safetensors(header, bytes(num_bytes))


NOT_INTEGERS = "is not a list of whole numbers"
BAD_FILES = {
    # file and header
    "empty": (b"", "0 bytes long, .* at least 10"),
    "shorter than a header": (struct.pack("<Q", 2), "8 bytes long"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer, .* run `git lfs pull`"),
    "GGUF": (b"GGUF" + bytes(60), "a GGUF file, a safetensors file is needed. Give its own path"),
    "web page": (b"<!DOCTYPE html><html></html>", "a web page"),
    "pickle": (b"PK\x03\x04" + bytes(60), "a zip or PyTorch file"),
    "huge header": (struct.pack("<Q", 2**64 - 1) + b"{}", "length of header at byte 0: 18446744073709551615"),
    "long header": (struct.pack("<Q", 2**24 + 1) + b"{}", "16777217 is over the limit of 16777216"),
    "header past the end": (struct.pack("<Q", 9) + b"{}", "header at byte 8: needs 9 bytes, 2 are left"),
    "header of no text": (struct.pack("<Q", 2) + b"{\xff", "header at byte 8: is not UTF-8"),
    "header of a list": (raw_safetensors("[]"), "header: not JSON: it does not begin with '{'"),
    "leading space": (raw_safetensors(" {}", b""), "header: not JSON: it does not begin with '{'"),
    "broken JSON": (raw_safetensors('{"w":'), "header: not JSON: Expecting value"),
    "deep JSON": (raw_safetensors('{"w":' * 100_000), "header: nested more than 32 deep"),
    "long number": (raw_safetensors('{"w":' + "9" * 5_000 + "}"), "header: not JSON: Exceeds the limit"),
    "tensor twice": (raw_safetensors('{"w": {}, "w": {}}'), "header: not JSON: a key appears twice"),
    "key twice": (raw_safetensors('{"w": {"dtype": 1, "dtype": 2}}'), "a key appears twice"),
    "too many tensors": (raw_safetensors({str(n): 0 for n in range(65_537)}), "65537 tensors, limit 65536"),
    # entries
    "long name": (raw_safetensors({"n" * 129: GOOD}), "name has 129 characters, limit 128"),
    "no entry": (raw_safetensors({"w": 7}), "tensor 'w': dtype is missing"),
    "no dtype": (one_tensor(dtype=None), "tensor 'w': dtype is missing"),
    "unknown dtype": (one_tensor(dtype="F8_E4M3"), "dtype is 'F8_E4M3', supported are F32, F16, BF16"),
    "long dtype": (one_tensor(dtype="F" * 10_000), r"dtype is 'FFF{,60}\.\.\., supported"),
    "dtype of a number": (one_tensor(dtype=32), "tensor 'w': dtype is of type int"),
    "no shape": (one_tensor(shape=None), f"tensor 'w': shape {NOT_INTEGERS}"),
    "shape of text": (one_tensor(shape="8"), f"tensor 'w': shape {NOT_INTEGERS}"),
    "fraction": (one_tensor(shape=[2, 4.0]), f"tensor 'w': shape {NOT_INTEGERS}"),
    "true": (one_tensor(shape=[True, 8]), f"tensor 'w': shape {NOT_INTEGERS}"),
    "negative dimension": (one_tensor(shape=[-2, -4]), f"tensor 'w': shape {NOT_INTEGERS}"),
    "no dimensions": (one_tensor(shape=[]), r"shape is \[\], 1 to 4 sizes of 1 to 2147483648"),
    "five dimensions": (one_tensor(shape=[2, 4, 1, 1, 1]), r"shape is \[2, 4, 1, 1, 1\], 1 to 4 sizes"),
    "dimension 0": (one_tensor(shape=[0], data_offsets=[0, 0]), r"shape is \[0\], 1 to 4 sizes of 1"),
    "huge dimension": (one_tensor(shape=[2**31 + 1]), r"shape is \[2147483649\]"),
    "size that wraps": (one_tensor(shape=[2**31] * 4), "has 85070591730234615865843651857942052864 bytes"),
    "no offsets": (one_tensor(data_offsets=None), f"tensor 'w': data_offsets {NOT_INTEGERS}"),
    "three offsets": (one_tensor(data_offsets=[0, 32, 64]), r"data_offsets are \[0, 32, 64\]"),
    "offsets too near": (one_tensor(data_offsets=[0, 31]), r"\[0, 31\], F32 of shape \[2, 4\] has 32 bytes"),
    "offsets turned round": (one_tensor(data_offsets=[32, 0]), r"data_offsets are \[32, 0\]"),
    # layout
    "overlap": (two_tensors((0, 32), (16, 48), 48), "tensor 'w' begins at byte 155, expected 171"),
    "same place": (two_tensors((0, 32), (0, 32), 32), "tensor 'w' begins at byte 138, expected 170"),
    "gap": (two_tensors((0, 32), (40, 72), 72), "tensor 'w' begins at byte"),
    "gap at the start": (two_tensors((8, 40), (40, 72), 72), "tensor 'v' begins at byte"),
    "huge offset": (one_tensor(data_offsets=[2**64, 2**64 + 32]), "tensor 'w' begins at byte 18446744"),
    "data cut off": (one_tensor()[:-1], "tensor 'w' ends at byte 105, the file at 104"),
    "trailing bytes": (one_tensor() + b"x", "1 bytes follow the last tensor, none may"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_by_the_name_of_its_field(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=f"bad.safetensors: .*{message}") as caught:
        SafetensorsFile.open(path)
    assert len(str(caught.value)) < 500 + len(str(path))


def test_the_parts_that_the_bad_files_are_made_of_are_good(tmp_path: Path) -> None:
    path = tmp_path / "good.safetensors"
    for content in (one_tensor(), two_tensors((32, 64), (0, 32)), raw_safetensors({}, b"")):
        path.write_bytes(content)
        with SafetensorsFile.open(path) as file:
            assert set(file.tensors) <= {"v", "w"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none\.safetensors: no such file\. Give the path"):
        SafetensorsFile.open(tmp_path / "none.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_tensors_come_back_byte_equal(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.randn(5, 3).to(dtype), "b": torch.randn(7).to(dtype)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    with SafetensorsFile.open(tmp_path / "m.safetensors") as file:
        blocks = {name: file.rows(name)[:] for name in file.tensors}
        assert {name: info.shape for name, info in file.tensors.items()} == {"a": (5, 3), "b": (7,)}
    for name, tensor in tensors.items():  # views outlive the file
        assert torch.equal(blocks[name].view(dtype).flatten(), tensor.flatten())


@pytest.mark.parametrize("num_spaces", range(8))
def test_data_may_begin_at_any_byte(tmp_path: Path, num_spaces: int) -> None:
    """Old files do not pad their header to a multiple of eight."""
    values = torch.randn(2, 4)
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw_safetensors(json.dumps({"w": GOOD}) + " " * num_spaces, values.numpy().tobytes()))
    with SafetensorsFile.open(path) as file:
        assert torch.equal(file.rows("w")[:].view(torch.float32) + 0, values)


def test_a_file_that_is_cut_while_it_is_open_is_refused_by_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(10_000)}, path)
    with SafetensorsFile.open(path) as file:
        blocks = file.rows("a")[:]
        os.truncate(path, 5_000)
        assert torch.equal(blocks.view(torch.float32), torch.ones(1, 10_000))
        with pytest.raises(ModelFileError, match=r"tensor 'a' ended at byte 5000 of \d+ .* cut short"):
            file.rows("a")[:]
    with pytest.raises(ValueError, match="is closed"):
        file.rows("a")[:]


@pytest.mark.long
@pytest.mark.parametrize("num_files", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_random_damage_raises_nothing_but_model_file_errors(tmp_path: Path, num_files: int) -> None:
    save_file({"a": torch.ones(4, 4), "b": torch.ones(3), "c": torch.ones(2, 2)}, tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    path, rng, messages = tmp_path / "damaged", random.Random(0), []
    for _ in range(num_files):
        path.write_bytes(damaged(good, rng))
        try:
            SafetensorsFile.open(path)
        except ModelFileError as error:
            messages.append(str(error))
    assert len(messages) > num_files // 2
    assert all(message.startswith(f"{path}: ") for message in messages)


def damaged(good: bytes, rng: random.Random) -> bytes:
    """A file cut off somewhere, or with one to four bytes of its header changed."""
    if rng.random() < 0.2:
        return good[: rng.randrange(len(good))]
    header_bytes = 8 + struct.unpack_from("<Q", good)[0]
    start, num_bytes = rng.randrange(header_bytes - 4), rng.randint(1, 4)
    damage = rng.choice((rng.randbytes(num_bytes), rng.choices(b'0123456789[]{},:"', k=num_bytes)))
    return good[:start] + bytes(damage) + good[start + num_bytes :]
