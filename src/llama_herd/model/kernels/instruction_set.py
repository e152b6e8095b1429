"""Instruction sets that native kernels are compiled for, and whether this machine grants them."""

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: Linux' arch_prctl, its request for a part of the processor's state, and the part that AMX's tiles are in.
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set: flags for the compiler, and features that a processor must have."""

    name: str
    needs: frozenset[str]  # as /proc/cpuinfo calls them
    compiler_flags: tuple[str, ...]

    @property
    def attends_to_prompts(self) -> bool:
        """Whether libraries for it have a kernel for the attention of prompts."""
        return "avx512f" in self.needs

    @property
    def complaint(self) -> str:
        """Why the instruction set cannot be used on this machine; empty if it can."""
        missing = sorted(self.needs - _processor_flags())
        if missing:
            return f"the processor has no {', '.join(missing)}"
        if "amx_tile" in self.needs and not _grants_tiles():
            return "the kernel does not grant AMX"
        return ""


AVX2 = InstructionSet("avx2", frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c"))
AVX_VNNI = InstructionSet("avx_vnni", AVX2.needs | {"avx_vnni"}, (*AVX2.compiler_flags, "-mavxvnni"))
AVX512_VNNI = InstructionSet(
    "avx512_vnni",
    AVX2.needs | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    (*AVX2.compiler_flags, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
)
AVX512_BF16 = InstructionSet(
    "avx512_bf16", AVX512_VNNI.needs | {"avx512_bf16"}, (*AVX512_VNNI.compiler_flags, "-mavx512bf16")
)
AMX = InstructionSet(
    "amx",
    AVX512_BF16.needs | {"amx_tile", "amx_bf16"},
    (*AVX512_BF16.compiler_flags, "-mamx-tile", "-mamx-bf16"),
)

#: The best first.
INSTRUCTION_SETS = (AMX, AVX512_BF16, AVX512_VNNI, AVX_VNNI, AVX2)


def is_known_machine() -> bool:
    """Whether there are kernels for this kind of machine at all."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions that multiply bfloat16: two to four times as fast as float32.

    Without them it is as slow as float32, or slower.
    """
    return not _processor_flags().isdisjoint({"amx_bf16", "avx512_bf16"})


@cache
def _processor_flags() -> frozenset[str]:
    """The features of the processor that the kernel lets programs use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    listed = (line.partition(":")[2] for line in lines if line.startswith("flags"))
    return frozenset(next(listed, "").split())


@cache
def _grants_tiles() -> bool:
    """Ask the kernel for AMX's tiles, for all threads of this process and for forked children."""
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0)
