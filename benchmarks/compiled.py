"""Compiled: what Triton's compiler makes of a kernel for a card that need not be there."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import triton
from torch import Tensor
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

from llama_herd.model.kernels.gpu.launch import Launch

#: Of one processor, on every card from compute capability 8.0 on.
REGISTERS = 65_536
#: What the driver takes of the shared memory for each program.
DRIVER_SHARED_BYTES = 1_024

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int8: "i8",
    torch.uint8: "u8",
}


@dataclass(frozen=True)
class Target:
    """A kind of card, and what one processor of it has."""

    capability: int  # ten times the compute capability
    shared_bytes: int
    warps: int

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"

    @property
    def program_shared_bytes(self) -> int:
        """The most shared memory of one program."""
        return self.shared_bytes - DRIVER_SHARED_BYTES

    @property
    def triton(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


#: An H100's and an H200's.
HOPPER = Target(90, 233_472, 64)
#: Those of an A100, of an A10, of a 4090, of Hopper, of a B200, of a 5090. Source: CUDA C programming guide.
TARGETS = (
    Target(80, 167_936, 64),
    Target(86, 102_400, 48),
    Target(89, 102_400, 48),
    HOPPER,
    Target(100, 233_472, 64),
    Target(120, 102_400, 48),
)


@dataclass(frozen=True)
class Compiled:
    """What a kernel takes of a processor, for each of its programs."""

    registers: int  # of a thread
    spilled_bytes: int  # of a thread, that had no register
    shared_bytes: int
    num_warps: int
    wide_loads: int  # instructions that load 16 bytes
    tensor_products: int  # instructions of the tensor cores
    loop_instructions: int  # of the longest loop
    programs: int  # that a processor runs at once

    @classmethod
    def of(cls, launch: Launch, target: Target = HOPPER) -> Self:
        """Compile it for a kind of card."""
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        kernel: Any = triton.compile(_source(launch), target=target.triton, options=options)
        usage, code = (_cuobjdump(kernel.asm["cubin"], option) for option in ("-res-usage", "-sass"))
        found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
        assert found is not None, usage
        registers = int(found[1])
        held = -(-registers // 8) * 8 * 32 * launch.num_warps
        shared = kernel.metadata.shared + DRIVER_SHARED_BYTES
        return cls(
            registers=registers,
            spilled_bytes=int(found[2]) or 4 * len(re.findall(r"\bSTL", code)),
            shared_bytes=kernel.metadata.shared,
            num_warps=launch.num_warps,
            wide_loads=len(re.findall(r"LDG(?:STS)?\.E\S*\.128", code)),
            tensor_products=len(re.findall(r"\b(?:HG?MMA|UTCHMMA)\b", code)),
            loop_instructions=max(map(len, _loops(code)), default=0),
            programs=min(REGISTERS // held, target.shared_bytes // shared, target.warps // launch.num_warps),
        )


def form(launch: Launch) -> list[tuple[str, Any]]:
    """What a launch needs a kernel to be compiled for, as Triton tells it from the arguments."""
    backend = CUDABackend(HOPPER.triton)
    return [
        native_specialize_impl(
            backend,
            launch.arguments[one.name],
            False,
            not one.do_not_specialize,
            not one.do_not_specialize_on_alignment,
        )
        for one in launch.kernel.params
        if one.name in launch.arguments
    ]


def _source(launch: Launch) -> ASTSource:
    """The kernel for these arguments, specialised as a launch would."""
    names = launch.kernel.arg_names
    free = {parameter.name for parameter in launch.kernel.params if parameter.do_not_specialize}
    signature, constants, attributes = {}, {}, {}
    for name, value in launch.constants.items():
        signature[name], constants[(names.index(name),)] = "constexpr", value
    for name, value in launch.arguments.items():
        signature[name] = _type(value)
        if isinstance(value, int) and value == 1 and name not in free:
            signature[name], constants[(names.index(name),)] = "constexpr", value
        elif name not in free and _is_aligned(value):
            attributes[(names.index(name),)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, {name: signature[name] for name in names}, constants, attributes)


def _type(value: Tensor | int | float) -> str:
    if isinstance(value, Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _is_aligned(value: Tensor | int | float) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)


def _loops(code: str) -> Iterator[list[str]]:
    """The instructions of each loop. One that writes results is none: it only waits, and jumps back."""
    found = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);?\s*/\*", code, re.MULTILINE)
    place_of = {int(address, 16): place for place, (address, _) in enumerate(found)}
    for place, (address, instruction) in enumerate(found):
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", instruction)
        if jump is None or int(jump[1], 16) >= int(address, 16):
            continue
        loop = [one for _, one in found[place_of[int(jump[1], 16)] : place + 1]]
        if not any(re.search(r"\bSTG\b", one) for one in loop):
            yield loop


def _cuobjdump(cubin: bytes, option: str) -> str:
    tool = Path(triton.__path__[0]) / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
