"""A Llama in a GGUF file: its shape, and exactly the weights that such a Llama has."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
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
from llama_herd.model.files.model_file import ROPE_NAME, ModelFile, bias_shapes, expected_shapes
from llama_herd.model.files.tensor_file import StoredRows
from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from llama_herd.model.reading.metadata import MAX_SCALE, Metadata, quoted
from llama_herd.model.shape.gguf_purpose import gguf_purpose
from llama_herd.model.shape.pooling import Override
from llama_herd.model.shape.purpose import overridden
from llama_herd.model.shape.rope_scaling import HELP as ROPE_HELP
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.recommended_sampling import metadata_sampling
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.weights.weight import Rows, Weight

if TYPE_CHECKING:
    from torch import Tensor

MAX_PARTS = 256

NUMBER_KEY = "split.no"  # from 0 on
COUNT_KEY = "split.count"
TENSORS_KEY = "split.tensors.count"  # in all parts

_PART_NAME = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

#: Without `output.weight` the embedding is used twice.
OPTIONAL_WEIGHTS = frozenset({"output.weight", ROPE_NAME})

#: What a file is, if it says so: a model, or an adapter, an importance matrix, a part that sees images.
KIND_KEY, MODEL = "general.type", "model"


class GGUFModel(ModelFile):
    """The checked view of a GGUF file, or of all parts of a model.

    with GGUFModel.open("model.gguf") as model:
        model.config.num_layers
        model.weight("blk.0.attn_q.weight")
    """

    def __init__(self, files: Sequence[GGUFFile], pooling: Override = "auto") -> None:
        """Take the parts of a model; what it says about itself stands in its first one."""
        self.metadata = files[0].metadata
        self._files, self._weights = files, _gather(files)
        _check_kind(self.metadata, self._weights)
        self.config = LlamaConfig.from_metadata(self.metadata)
        own = gguf_purpose(self.metadata, self.config.family.architecture)
        self.purpose, self.complaints = overridden(own, pooling, self.metadata.source)
        self._check_weights()
        if ROPE_NAME in self:
            scaling = self.config.rope_scaling.slowed(self._rope_divisors())
            self.config = replace(self.config, rope_scaling=scaling)

    @classmethod
    def open(cls, path: str | PathLike[str], pooling: Override = "auto") -> Self:
        """Open a model file, or all parts by one of them; `pooling` is that of `open_model`.

        Raises ModelFileError, which names the part, when it is missing, damaged or not a known Llama.
        """
        path = Path(path)
        with ExitStack() as stack:
            asked = stack.enter_context(GGUFFile.open(path))
            files = [
                asked if part == path else stack.enter_context(GGUFFile.open(part))
                for part in _part_paths(asked)
            ]
            for number, file in enumerate(files):
                _check_part(file, number, len(files))
            opened = cls(files, pooling)
            stack.pop_all()
            return opened

    def weight(self, name: str) -> Weight:
        stored, config = self._weights[self._stored_name(name)], self.config
        heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
        num_heads = heads.get(name.split(".")[-2], 0) if config.family.interleaved else 0
        if num_heads and name.endswith(".bias"):
            return _unpermuted_bias(stored, num_heads)
        rows: Rows = unpermute_rows(stored[:], num_heads) if num_heads else stored
        return Weight(stored.info.type, stored.info.shape, rows)

    @property
    def sampling(self) -> dict[str, float]:
        return metadata_sampling(self.metadata)

    def read_tokenizer(self) -> Tokenizer:
        return Tokenizer.from_metadata(self.metadata)

    def read_control_tokens(self, tokenizer: Tokenizer) -> ControlTokens:
        return ControlTokens.from_metadata(self.metadata, tokenizer)

    def _rope_divisors(self) -> list[float]:
        stored = self._weights[ROPE_NAME]
        with np.errstate(all="ignore"):  # of numbers that are refused
            values = gguf.quants.dequantize(stored.read(), stored.info.type)
        divisors: list[float] = values.flatten().tolist()
        if not all(0 < divisor < MAX_SCALE for divisor in divisors):
            raise self.metadata.error(ROPE_NAME, f"holds a factor not above 0 or not below {MAX_SCALE:g}")
        return divisors

    def _check_weights(self) -> None:
        """Raise ModelFileError unless they are those of such a model, in their shapes and of known types."""
        needed, source = expected_shapes(self.config, self.purpose), self.metadata.source
        missing = [name for name in needed if name not in self and name not in OPTIONAL_WEIGHTS]
        if missing:
            raise ModelFileError(
                f"{source}: tensor {missing[0]} is missing. Fetch the file again, or take another one of the "
                "same model."
            )
        expected = bias_shapes(self.config) | needed
        for info in self.tensors:
            tensor, shape = f"{source}: tensor {quoted(info.name)}", expected.get(info.name)
            if info.name.startswith("rope_factors_"):
                problem = "scales RoPE for long texts, which is not supported"
                raise ModelFileError(f"{tensor} {problem}. {ROPE_HELP}")
            if shape is None:
                family = self.config.family.name
                raise ModelFileError(f"{tensor} is no part of a {family} of this shape. Take another model.")
            if info.shape != shape:
                raise ModelFileError(f"{tensor} has shape {info.shape}, expected {shape}. Take another file.")
            if info.type not in SUPPORTED_TYPES:
                problem = f"is of type {info.type.name}, which is not supported"
                raise ModelFileError(f"{tensor} {problem}. {OTHER_TYPE}")


def _gather(files: Sequence[GGUFFile]) -> dict[str, StoredRows]:
    """All tensors of a model's parts."""
    found: dict[str, StoredRows] = {}
    for file in files:
        for name in file.tensors:
            if name in found:
                first = found[name].file.path.name
                raise ModelFileError(
                    f"{file.path}: tensor {quoted(name)} is in {first} as well. Fetch both again."
                )
            found[name] = file.rows(name)
    if len(files) > 1:
        stated = files[0].metadata.integer(TENSORS_KEY, 0, MAX_TENSORS)
        if stated != len(found):
            problem = f"is {stated}, but its {len(files)} parts hold {len(found)} tensors"
            raise files[0].metadata.error(TENSORS_KEY, problem)
    return found


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


def unpermute_rows(blocks: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of a Q or K projection from RoPE's interleaved pairs to half-split, a head at a time.

    llama.cpp's converter stores rows i and i + D/2 of each head side by side; its RoPE turns neighbours.
    Rows move as a whole, so this holds for quantised types too. Returns a copy.
    Source: `permute` in https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
    """
    num_rows, row_bytes = blocks.shape
    pairs = blocks.view(num_heads, num_rows // num_heads // 2, 2, row_bytes)
    return pairs.transpose(1, 2).reshape(num_rows, row_bytes)


def _unpermuted_bias(stored: StoredRows, num_heads: int) -> Weight:
    """A bias of Q or K, whose values stand in the order of their projection's rows."""
    import torch  # as `StoredRows` does, where weights are read

    from llama_herd.model.kernels.dequantize import dequantize

    values = dequantize(stored[:], stored.info.type)  # (1, rows), float32
    ordered = unpermute_rows(values.reshape(-1, 1), num_heads).view(1, -1)
    return Weight(gguf.GGMLQuantizationType.F32, stored.info.shape, ordered.view(torch.uint8))


def _check_kind(metadata: Metadata, tensors: Collection[str]) -> None:
    """Raise ModelFileError for a file that holds something else than a model, such as an adapter."""
    kind = metadata.text(KIND_KEY, MODEL)
    if kind != MODEL:
        problem = f"is {quoted(kind)}, {MODEL!r} is needed"
        raise metadata.error(KIND_KEY, problem, "Take the model itself.")
    if not tensors:
        problem = "holds no tensors: it is only a vocabulary"
        raise ModelFileError(f"{metadata.source}: {problem}. Take the whole model, such as its Q8_0.")
