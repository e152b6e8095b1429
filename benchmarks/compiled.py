"""Compiled: what Triton's compiler makes of a kernel for a card that need not be there."""

import re
import subprocess
import tempfile
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

#: An H100's and an H200's. Of one processor: registers, bytes of shared memory, and warps.
HOPPER = GPUTarget("cuda", 90, 32)
REGISTERS, SHARED_BYTES, WARPS = 65_536, 233_472, 64
#: The most shared memory of one program, and what the driver takes of each.
PROGRAM_SHARED_BYTES, DRIVER_SHARED_BYTES = 232_448, 1_024
MAX_REGISTERS = 255

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int8: "i8",
    torch.uint8: "u8",
}


@dataclass(frozen=True)
class Compiled:
    """What a kernel takes of a processor, for each of its programs."""

    registers: int  # of a thread
    spilled_bytes: int  # of a thread, that had no register
    shared_bytes: int
    num_warps: int
    wide_loads: int  # instructions that load 16 bytes
    tensor_products: int  # instructions of the tensor cores

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """Compile it for Hopper."""
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        kernel: Any = triton.compile(_source(launch), target=HOPPER, options=options)
        usage, code = (_cuobjdump(kernel.asm["cubin"], option) for option in ("-res-usage", "-sass"))
        found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
        assert found is not None, usage
        return cls(
            registers=int(found[1]),
            spilled_bytes=int(found[2]) or 4 * len(re.findall(r"\bSTL", code)),
            shared_bytes=kernel.metadata.shared,
            num_warps=launch.num_warps,
            wide_loads=len(re.findall(r"LDG(?:STS)?\.E\S*\.128", code)),
            tensor_products=len(re.findall(r"\bHG?MMA\b", code)),
        )

    @property
    def programs(self) -> int:
        """How many of them a processor runs at once."""
        registers = -(-self.registers // 8) * 8 * 32 * self.num_warps
        shared = self.shared_bytes + DRIVER_SHARED_BYTES
        return min(REGISTERS // registers, SHARED_BYTES // shared, WARPS // self.num_warps)


def form(launch: Launch) -> list[tuple[str, Any]]:
    """What a launch needs a kernel to be compiled for, as Triton tells it from the arguments."""
    backend = CUDABackend(HOPPER)
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


def _cuobjdump(cubin: bytes, option: str) -> str:
    tool = Path(triton.__path__[0]) / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
