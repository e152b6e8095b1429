"""What this processor can do at best."""

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Self

import torch

from benchmarks.conditions import Processor, read_bandwidth
from benchmarks.floors import Floors
from benchmarks.harness import timed_s
from benchmarks.report import Row, Table
from benchmarks.speed.files import ModelFile, weight_bytes
from llama_herd.model.kernels.instruction_set import AMX, is_known_machine

SOURCE = Path(__file__).with_name("peaks.cpp")
#: Read at once: more than any cache holds.
READ_BYTES = 1 << 29
#: The matrices of torch's product, and how often they are multiplied.
_SIZE, _ROUNDS = 2_048, 5


@dataclass(frozen=True)
class Instruction:
    """What kernels multiply with. `kind` is its number in peaks.cpp."""

    name: str
    kind: int
    needs: frozenset[str]
    takes_blocks: bool  # numbers of 8 bits, which blocks are; all others take bfloat16

    def is_here(self, processor: Processor) -> bool:
        return self.needs <= processor.flags and not ("amx_tile" in self.needs and AMX.complaint)


INSTRUCTIONS = (
    Instruction("int8 dot by AVX2", 0, frozenset({"avx2"}), True),
    Instruction("int8 dot by AVX512-VNNI", 1, frozenset({"avx512f", "avx512_vnni"}), True),
    Instruction("bf16 dot by AVX512-BF16", 2, frozenset({"avx512f", "avx512_bf16"}), False),
    Instruction("bf16 tiles by AMX", 3, frozenset({"amx_tile", "amx_bf16"}), False),
)


def float_type() -> torch.dtype:
    """The type in which torch multiplies fastest: without instructions for bfloat16 that takes an age."""
    return torch.bfloat16 if Processor.here().flags & {"avx512_bf16", "amx_bf16"} else torch.float32


def type_name() -> str:
    """The short name of that type."""
    return "bf16" if float_type() == torch.bfloat16 else "f32"


#: What torch itself does, which is a ceiling where there is no compiler for instructions alone.
TORCH = f"{type_name()} product of torch"


@dataclass(frozen=True)
class Ceilings:
    """Bytes that are read from memory in a second, and operations by what does them."""

    bytes_per_s: float
    operations_per_s: dict[str, float]

    @classmethod
    def measure(cls, threads: int) -> Self:
        """By instructions alone, where there is a compiler for them; else by torch."""
        processor, operations = Processor.here(), {TORCH: _torch_flop_per_s()}
        if not (which("g++") and is_known_machine()):
            return cls(read_bandwidth(), operations)
        with TemporaryDirectory() as folder:
            library = _compiled(Path(folder))
        here = [one for one in INSTRUCTIONS if one.is_here(processor)]
        peaks = {one.name: library.operations_per_s(one.kind, threads) for one in here}
        return cls(library.read_bytes_per_s(READ_BYTES, threads), operations | peaks)

    def floors(self, file: ModelFile, path: Path) -> Floors:
        """No kernel can be faster: numbers of 16 bits are not multiplied as those of 8 are."""
        of_blocks = {one.name for one in INSTRUCTIONS if one.takes_blocks}
        usable = [
            speed for name, speed in self.operations_per_s.items() if file.is_blocks or name not in of_blocks
        ]
        return Floors(file.config, weight_bytes(path), self.bytes_per_s, max(usable))

    def table(self) -> Table:
        rows: list[Row] = [{"ceiling": "memory read, GB/s", "at most": self.bytes_per_s / 1e9}]
        for name, speed in self.operations_per_s.items():
            rows.append({"ceiling": f"{name}, GOP/s", "at most": speed / 1e9})
        return Table(rows, "What the processor can do: a floor goes by the fastest that its file allows")


def _compiled(folder: Path) -> ctypes.CDLL:
    path = folder / "peaks.so"
    flags = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread")
    command = ["g++", *flags, str(SOURCE), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    library = ctypes.CDLL(str(path))
    library.operations_per_s.restype = library.read_bytes_per_s.restype = ctypes.c_double
    library.operations_per_s.argtypes = ctypes.c_int, ctypes.c_int
    library.read_bytes_per_s.argtypes = ctypes.c_long, ctypes.c_int
    return library


def _torch_flop_per_s() -> float:
    left = torch.randn(_SIZE, _SIZE).to(float_type())
    return 2.0 * _SIZE**3 / min(timed_s(lambda: left @ left) for _ in range(_ROUNDS))
