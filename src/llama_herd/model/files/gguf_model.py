"""A Llama in a GGUF file: its shape, and exactly the weights that such a Llama has."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self

import gguf
import numpy as np

from llama_herd.errors import ModelFileError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf import MAX_TENSORS, OTHER_TYPE, GGUFFile
from llama_herd.model.files.model_file import ROPE_NAME, ModelFile, Shape, expected_shapes
from llama_herd.model.files.tensor_file import StoredRows, TensorInfo
from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from llama_herd.model.reading.metadata import MAX_SCALE, quoted
from llama_herd.model.shape.rope_scaling import HELP as ROPE_HELP
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.weights.weight import Rows, Weight

if TYPE_CHECKING:
    from torch import Tensor

MAX_PARTS = 256

NUMBER_KEY = "split.no"  # from 0 on
COUNT_KEY = "split.count"
TENSORS_KEY = "split.tensors.count"  # in all parts

_PART_NAME = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFParts:
    """All tensors of a model; what it says about itself stands in its first part."""

    def __init__(self, files: list[GGUFFile]) -> None:
        self.path, self.metadata = files[0].path, files[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        self._holders: dict[str, GGUFFile] = {}
        self._files = files
        for file in files:
            self._add(file)
        if len(files) > 1:
            stated = self.metadata.integer(TENSORS_KEY, 0, MAX_TENSORS)
            if stated != len(self.tensors):
                problem = f"is {stated}, but its {len(files)} parts hold {len(self.tensors)} tensors"
                raise self.metadata.error(TENSORS_KEY, problem)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open a model by any of its parts. Raises ModelFileError, which names the part that is bad."""
        path = Path(path)
        with ExitStack() as stack:
            asked = GGUFFile.open(path)
            stack.callback(asked.close)
            files = []
            for part in _part_paths(asked):
                file = asked if part == path else GGUFFile.open(part)
                stack.callback(file.close)
                files.append(file)
            for number, file in enumerate(files):
                _check_part(file, number, len(files))
            opened = cls(files)
            stack.pop_all()
            return opened

    def rows(self, name: str) -> StoredRows:
        """A tensor's rows, to be read while the files are open."""
        return self._holders[name].rows(name)

    def close(self) -> None:
        """Give up the files; what has been read of them stays good."""
        for file in self._files:
            file.close()

    def _add(self, file: GGUFFile) -> None:
        for name, info in file.tensors.items():
            if name in self.tensors:
                first = self._holders[name].path.name
                raise ModelFileError(
                    f"{file.path}: tensor {quoted(name)} is in {first} as well. Fetch both again."
                )
            self.tensors[name], self._holders[name] = info, file


def _part_paths(file: GGUFFile) -> list[Path]:
    """The files that a model consists of, by the one of them that was asked for."""
    count = file.metadata.integer(COUNT_KEY, 0, MAX_PARTS, 1)
    if count <= 1:
        return [file.path]
    match = _PART_NAME.fullmatch(file.path.name)
    if match is None or int(match["count"]) != count:
        number = file.metadata.integer(NUMBER_KEY, 0, MAX_PARTS) + 1
        needed = f"-{number:05}-of-{count:05}.gguf"
        raise ModelFileError(
            f"{file.path}: one of {count} parts of a model: its name must end in {needed}. Rename it."
        )
    paths = [file.path.with_name(f"{match['model']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    for path in paths:
        if not path.exists():
            raise ModelFileError(
                f"{path}: missing, {file.path.name} is one of {count} parts. Fetch it as well: "
                f"hf download OWNER/NAME {path.name} --local-dir {path.parent}."
            )
    return paths


def _check_part(file: GGUFFile, number: int, count: int) -> None:
    """Raise ModelFileError unless a file says that it is the part that its name says."""
    if count == 1:
        return
    found = file.metadata.integer(NUMBER_KEY, 0, MAX_PARTS), file.metadata.integer(COUNT_KEY, 0, MAX_PARTS)
    if found != (number, count):
        problem = f"is {found[0]} of {found[1]}, {number} of {count} by the file's name"
        raise file.metadata.error(NUMBER_KEY, problem)


#: Without `output.weight` the embedding is used twice.
OPTIONAL_WEIGHTS = frozenset({"output.weight", ROPE_NAME})

#: What a file is, if it says so: a model, or an adapter, an importance matrix, a part that sees images.
KIND_KEY, MODEL = "general.type", "model"


class GGUFModel(ModelFile):
    """The checked view of a GGUF file.

    with GGUFModel.open("model.gguf") as model:
        model.config.num_layers
        model.weight("blk.0.attn_q.weight")
    """

    def __init__(self, file: GGUFParts) -> None:
        _check_kind(file)
        self.metadata = file.metadata
        self.config = LlamaConfig.from_metadata(file.metadata)
        _check_tensor_set(file, expected_shapes(self.config), self.config.family.name)
        self._file = file
        if ROPE_NAME in file.tensors:
            scaling = self.config.rope_scaling.slowed(self._rope_divisors())
            self.config = replace(self.config, rope_scaling=scaling)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open a model file, or all parts by one of them.

        Raises ModelFileError when it is missing, damaged or not a known Llama.
        """
        file = GGUFParts.open(path)
        try:
            return cls(file)
        except ModelFileError:
            file.close()
            raise

    @property
    def tensors(self) -> Collection[TensorInfo]:
        return self._file.tensors.values()

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def weight(self, name: str) -> Weight:
        info = self._file.tensors[self._stored_name(name)]
        rows: Rows = self._file.rows(info.name)
        if not self.config.family.interleaved:
            return Weight(info.type, info.shape, rows)
        if name.endswith(".attn_q.weight"):
            rows = unpermute_rows(rows[:], self.config.num_heads)
        elif name.endswith(".attn_k.weight"):
            rows = unpermute_rows(rows[:], self.config.num_kv_heads)
        return Weight(info.type, info.shape, rows)

    def read_tokenizer(self) -> Tokenizer:
        return Tokenizer.from_metadata(self.metadata)

    def read_control_tokens(self, tokenizer: Tokenizer) -> ControlTokens:
        return ControlTokens.from_metadata(self.metadata, tokenizer)

    def close(self) -> None:
        self._file.close()

    def _rope_divisors(self) -> list[float]:
        blocks, type = self._file.rows(ROPE_NAME).read(), self._file.tensors[ROPE_NAME].type
        with np.errstate(all="ignore"):  # of numbers that are refused
            divisors: list[float] = gguf.quants.dequantize(blocks, type).flatten().tolist()
        if not all(0 < divisor < MAX_SCALE for divisor in divisors):
            raise self.metadata.error(ROPE_NAME, f"holds a factor not above 0 or not below {MAX_SCALE:g}")
        return divisors


def unpermute_rows(blocks: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of a Q or K projection from RoPE's interleaved pairs to half-split, a head at a time.

    llama.cpp's converter stores rows i and i + D/2 of each head side by side; its RoPE turns neighbours.
    Rows move as a whole, so this holds for quantised types too. Returns a copy.
    Source: `permute` in https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
    """
    num_rows, row_bytes = blocks.shape
    pairs = blocks.view(num_heads, num_rows // num_heads // 2, 2, row_bytes)
    return pairs.transpose(1, 2).reshape(num_rows, row_bytes)


def _check_kind(file: GGUFParts) -> None:
    """Raise ModelFileError for a file that holds something else than a model, such as an adapter."""
    kind = file.metadata.text(KIND_KEY, MODEL)
    if kind != MODEL:
        problem = f"is {quoted(kind)}, {MODEL!r} is needed"
        raise file.metadata.error(KIND_KEY, problem, "Take the model itself.")
    if not file.tensors:
        problem = "holds no tensors: it is only a vocabulary"
        raise ModelFileError(f"{file.path}: {problem}. Take the whole model, such as its Q8_0.")


def _check_tensor_set(file: GGUFParts, expected: Mapping[str, Shape], family: str) -> None:
    for name in expected:
        if name not in file.tensors and name not in OPTIONAL_WEIGHTS:
            raise ModelFileError(
                f"{file.path}: tensor {name} is missing. Fetch the file again, or take another one of the "
                "same model."
            )
    for info in file.tensors.values():
        _check_tensor(file, info, expected, family)


def _check_tensor(file: GGUFParts, info: TensorInfo, expected: Mapping[str, Shape], family: str) -> None:
    """Raise ModelFileError unless a tensor is one of those expected, in its shape and of a known type."""
    tensor = f"{file.path}: tensor {quoted(info.name)}"
    if info.name.startswith("rope_factors_"):
        raise ModelFileError(f"{tensor} scales RoPE for long texts, which is not supported. {ROPE_HELP}")
    if info.name not in expected:
        raise ModelFileError(f"{tensor} is no part of a {family} of this shape. Take another model.")
    if info.shape != expected[info.name]:
        raise ModelFileError(
            f"{tensor} has shape {info.shape}, expected {expected[info.name]}. Take another file."
        )
    if info.type not in SUPPORTED_TYPES:
        raise ModelFileError(f"{tensor} is of type {info.type.name}, which is not supported. {OTHER_TYPE}")
