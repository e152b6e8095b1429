"""Safetensors files: a strict, bounded header, tensors that stay in the file, and the files of a folder.

Source: https://github.com/huggingface/safetensors#format
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from llama_herd.counted import counted
from llama_herd.errors import ModelFileError
from llama_herd.model.files.file_kind import HEAD_BYTES, recognise
from llama_herd.model.files.gguf import MAX_DIM, MAX_DIMS, MAX_NAME_BYTES, MAX_TENSORS
from llama_herd.model.files.tensor_file import OpenFile, TensorFile, TensorInfo
from llama_herd.model.reading.bounded_reader import BoundedReader, damaged
from llama_herd.model.reading.json_file import parse_json, read_json
from llama_herd.model.reading.metadata import UNQUANTISED, Metadata, quoted

#: The format's own limit is 100 MB; a Llama of 512 layers needs less than one.
MAX_HEADER_BYTES = 16 << 20
#: The header's length and "{}".
MIN_FILE_BYTES = 10

#: Where a file's own notes stand in its header; nothing here reads them.
NOTES_KEY = "__metadata__"

#: The types that are read here, by their names in a header.
DTYPES = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
}

WHOLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 1_024
#: A file's name has no more, and it is looked for.
MAX_NAME_CHARS = 200

#: Weights as pickles, which can run code when they are read.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class SafetensorsFile(TensorFile):
    """A safetensors file.

    with SafetensorsFile.open("model.safetensors") as file:
        file.rows("model.norm.weight")[:]  # uint8 (rows, bytes of a row)
    """

    kind = "safetensors"

    def _read(self, file: OpenFile) -> Mapping[str, TensorInfo]:
        head = file.read(HEAD_BYTES)
        kind = recognise(head)
        if kind.magic:
            raise ModelFileError(f"{file.path}: {kind.name}, a safetensors file is needed. {kind.fix}")
        if len(head) < MIN_FILE_BYTES:
            problem = f"{len(head)} bytes long, a safetensors file has at least {MIN_FILE_BYTES}"
            raise ModelFileError(f"{file.path}: {problem}. Fetch it.")
        reader = file.reader(file.num_bytes)
        entries = read_entries(reader)
        entries.pop(NOTES_KEY, None)
        if len(entries) > MAX_TENSORS:
            raise damaged(reader.source, f"the header names {len(entries)} tensors, limit {MAX_TENSORS}")
        infos = {name: _tensor_info(name, entry, reader) for name, entry in entries.items()}
        _check_layout(infos, reader)
        return infos


def read_entries(reader: BoundedReader) -> dict[str, Any]:
    """Read the header, at which `reader` stands, to its entry for each tensor. Raises ModelFileError."""
    header = reader.string(MAX_HEADER_BYTES, "header")
    if not header.startswith("{"):
        raise damaged(reader.source, "header: not JSON: it does not begin with '{'")
    entries: dict[str, Any] = parse_json(header, f"{reader.source}: header", _unique)
    return entries


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key appears twice")
    return entries


def _tensor_info(name: str, values: object, reader: BoundedReader) -> TensorInfo:
    """A tensor's entry in the header; its data begins after the header, where `reader` stands."""
    if len(name) > MAX_NAME_BYTES:
        raise damaged(reader.source, f"a tensor's name has {len(name)} characters, limit {MAX_NAME_BYTES}")
    entry = Metadata(values if isinstance(values, dict) else {}, f"{reader.source}: tensor {quoted(name)}")
    dtype = entry.text("dtype")
    if dtype not in DTYPES:
        raise entry.error("dtype", f"is {quoted(dtype)}, supported are {', '.join(DTYPES)}", UNQUANTISED)
    shape = _integers(entry, "shape")
    if not 1 <= len(shape) <= MAX_DIMS or not all(1 <= dim <= MAX_DIM for dim in shape):
        raise entry.error("shape", f"is {shape}, 1 to {MAX_DIMS} sizes of 1 to {MAX_DIM} are allowed")
    offsets = _integers(entry, "data_offsets")
    num_bytes = math.prod(shape) * GGML_QUANT_SIZES[DTYPES[dtype]][1]
    if len(offsets) != 2 or offsets[1] - offsets[0] != num_bytes:
        raise entry.error("data_offsets", f"are {offsets}, {dtype} of shape {shape} has {num_bytes} bytes")
    return TensorInfo(name, DTYPES[dtype], tuple(shape), reader.offset + offsets[0], num_bytes)


def _integers(entry: Metadata, key: str) -> list[int]:
    values = entry.get(key)
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise entry.error(key, "is not a list of whole numbers from 0 on")
    return values


def _check_layout(infos: Mapping[str, TensorInfo], reader: BoundedReader) -> None:
    """Tensors follow each other without overlap or gap, up to the end of the file and no further."""
    end = reader.offset
    for info in sorted(infos.values(), key=lambda info: info.offset):
        if info.offset != end:
            raise damaged(
                reader.source, f"tensor {quoted(info.name)} begins at byte {info.offset}, expected {end}"
            )
        end = info.offset + info.num_bytes
        if end > reader.end:
            raise damaged(
                reader.source, f"tensor {quoted(info.name)} ends at byte {end}, the file at {reader.end}"
            )
    if end < reader.end:
        raise damaged(reader.source, f"{reader.end - end} bytes follow the last tensor, none may")


def how_to_complete(folder: Path) -> str:
    """The command that completes a folder; what is there already it does not fetch again."""
    return f"Fetch what is missing: hf download OWNER/NAME --local-dir {folder}."


def weight_paths(folder: Path) -> list[Path]:
    """The files that hold a folder's weights. Raises ModelFileError, which names what is missing."""
    if (folder / WHOLE_NAME).is_file():
        return [folder / WHOLE_NAME]
    if (folder / INDEX_NAME).is_file():
        return _shard_paths(folder / INDEX_NAME)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise ModelFileError(
            f"{folder}: {pickles[0]} is a pickle, which can run code when it is read, and is never opened. "
            "Fetch the model's safetensors files, or load it with transformers and call `save_pretrained`."
        )
    raise ModelFileError(f"{folder}: holds neither {WHOLE_NAME} nor {INDEX_NAME}. {how_to_complete(folder)}")


def _shard_paths(index_path: Path) -> list[Path]:
    """The files that an index names, all of which must be there."""
    index = read_json(index_path, MAX_INDEX_BYTES)
    names = sorted({str(name) for name in index.nested("weight_map").values()})
    if not 1 <= len(names) <= MAX_SHARDS:
        raise index.error("weight_map", f"names {len(names)} files, allowed are 1 to {MAX_SHARDS}")
    for name in names:  # a plain one, as it must lie in the same folder
        if Path(name).name != name or not name.endswith(".safetensors") or len(name) > MAX_NAME_CHARS:
            problem = f"names {quoted(name)}, which is no safetensors file of this folder"
            raise index.error("weight_map", problem)
    paths = [index_path.with_name(name) for name in names]
    for path in paths:
        if not path.is_file():
            raise ModelFileError(
                f"{path}: missing, {INDEX_NAME} names {counted(len(names), 'file')}. "
                + how_to_complete(path.parent)
            )
    return paths
