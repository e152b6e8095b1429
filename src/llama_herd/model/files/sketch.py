"""Sketch: a model as its headers describe it. Nothing is refused, and no weight is read."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeGuard

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from llama_herd.counted import counted
from llama_herd.errors import ModelFileError
from llama_herd.model.files.file_kind import GGUF, HEAD_BYTES, SAFETENSORS, recognise
from llama_herd.model.files.gguf import Header, TensorEntry, read_header, type_name
from llama_herd.model.files.safetensors import MAX_SHARDS, NOTES_KEY, read_entries
from llama_herd.model.files.safetensors_model import CONFIG_NAME, MAX_CONFIG_BYTES
from llama_herd.model.files.tensor_file import OpenFile, TensorInfo
from llama_herd.model.reading.json_file import read_json
from llama_herd.model.text.token_facts import TokenFacts

#: Most sizes of a shape, and the largest size, or place in a file, that is believed.
MAX_SIZES, MAX_SIZE = 16, 1 << 63


class TensorFact(NamedTuple):
    """A tensor as a header describes it, true or not."""

    type: str
    num_parameters: int
    num_bytes: int

    @classmethod
    def from_info(cls, info: TensorInfo) -> Self:
        """The tensor of a checked file."""
        return cls(info.type.name, math.prod(info.shape), info.num_bytes)


@dataclass(frozen=True)
class Sketch:
    """A model as its headers describe it, as far as they can be read."""

    kind: str = ""  # empty: there is nothing that can be read
    header: Mapping[str, object] = field(default_factory=dict)
    tensors: Sequence[TensorFact] = ()
    tokens: TokenFacts | None = None

    @classmethod
    def from_path(cls, path: Path) -> Self:
        """The sketch of a file or folder."""
        kind = kind_of(path)
        if not kind:
            return cls()
        if path.is_dir():
            tensors = [fact for file in _weight_paths(path) for fact in _safetensors_facts(file)]
            return cls(kind, _config(path), tensors, TokenFacts.from_folder(path))
        if kind.startswith(GGUF.name):
            header, tensors = _gguf_facts(path)
            return cls(kind, header, tensors, TokenFacts.from_header(header))
        return cls(kind, tensors=_safetensors_facts(path) if kind == SAFETENSORS.name else ())


def kind_of(path: Path) -> str:
    """The kind of file or folder at a path, by its first bytes; empty: nothing that can be read."""
    try:
        if path.is_dir():
            return f"a folder with {counted(len(_weight_paths(path)), 'safetensors file')}"
        with closing(_open(path)) as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return ""
    kind = recognise(head)
    if kind is not GGUF:
        return kind.name
    # Of the two byte orders it has the one in which its version is small.
    version, order = min((int.from_bytes(head[4:8], order), order) for order in ("little", "big"))
    return f"{kind.name}, version {version}, {order}-endian"


def _open(path: Path) -> OpenFile:
    """Open a file. Raises OSError unless it is a regular one: a pipe would be waited for."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return OpenFile(path)


def _weight_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))[:MAX_SHARDS]


def _config(folder: Path) -> Mapping[str, object]:
    try:
        return read_json(folder / CONFIG_NAME, MAX_CONFIG_BYTES)
    except ModelFileError:
        return {}


def _gguf_facts(path: Path) -> tuple[Mapping[str, object], list[TensorFact]]:
    """The metadata and tensors of a GGUF header, up to where it is damaged."""
    header = Header()
    with suppress(OSError), closing(_open(path)) as file:
        with suppress(ModelFileError):
            read_header(file, header)
        return header.metadata, list(
            _gguf_tensors(header.entries.values(), file.num_bytes - header.data_start)
        )
    return {}, []


def _gguf_tensors(entries: Iterable[TensorEntry], data_bytes: int) -> Iterator[TensorFact]:
    """The tensors of a table; one of an unknown type has the bytes up to the next."""
    ordered = sorted(entries, key=lambda entry: entry.offset)
    ends = [entry.offset for entry in ordered[1:]] + [max(0, data_bytes)]
    for entry, end in zip(ordered, ends, strict=bool(ordered)):
        num_values = math.prod(entry.shape)
        num_bytes = max(0, end - entry.offset)
        if entry.type_id in GGML_QUANT_SIZES:
            block_values, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(entry.type_id)]
            num_bytes = num_values // block_values * block_bytes
        yield TensorFact(type_name(entry.type_id), num_values, num_bytes)


def _safetensors_facts(path: Path) -> list[TensorFact]:
    """The tensors of a safetensors header, without those of which it says nothing that can be."""
    entries: dict[str, Any] = {}
    with suppress(OSError, ModelFileError), closing(_open(path)) as file:
        entries = read_entries(file.reader(file.num_bytes))
    facts = []
    for name, entry in entries.items():
        if name != NOTES_KEY and isinstance(entry, dict):
            type, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
            if isinstance(type, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2:
                facts.append(TensorFact(type, math.prod(shape), max(0, offsets[1] - offsets[0])))
    return facts


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    if not isinstance(values, list) or len(values) > MAX_SIZES:
        return False
    return all(type(value) is int and 0 <= value <= MAX_SIZE for value in values)
