"""Native kernels multiply as float64 does, each on its instruction set, whatever the shape."""

import os
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType
from torch import Tensor

from benchmarks.stored_blocks import SCALES_AT, stored_blocks
from llama_herd.errors import BadInput
from llama_herd.model.kernels.block_types import NUMBERS, TILED_TYPES
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.instruction_set import (
    AMX,
    INSTRUCTION_SETS,
    InstructionSet,
)
from llama_herd.model.kernels.native import Kernel, Kernels, is_close, load_kernels, load_library
from llama_herd.model.kernels.tiles import blocks_of
from llama_herd.model.sizes import BFLOAT16_BYTES, FLOAT32_BYTES
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import NativeSegment
from llama_herd.model.weights.weight import Weight
from tests.model.native_library import DISTINCT_SETS, find, kernels_of

pytestmark = pytest.mark.long

TYPES = sorted(TILED_TYPES)
#: What else a library does; and one of wide vectors.
OTHERS = "bfloat16, attention, RoPE, norms and gates"
OTHERS_AND_PROMPTS = "bfloat16, attention, attention of prompts, RoPE, norms and gates"
#: Rows and columns of a matrix that is large enough to wake threads for.
LARGE = (4000, 352)


#: The ways to multiply that the library of each set has.
WAYS = {
    set: [Kernel.FLOAT32, Kernel.INT8, *([Kernel.TILES] if set is AMX else [])] for set in INSTRUCTION_SETS
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each set, or each way to multiply of each set."""
    if "kernel" in metafunc.fixturenames:
        pairs = [(set, kernel) for set, ways in WAYS.items() for kernel in ways]
        names = [f"{set.name}-{kernel.name}" for set, kernel in pairs]
        metafunc.parametrize(("kernels", "kernel"), pairs, indirect=["kernels"], ids=names, scope="module")
    elif "kernels" in metafunc.fixturenames:
        metafunc.parametrize("kernels", WAYS, indirect=True, ids=lambda set: set.name, scope="module")


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest, kernels_folder: Path) -> Kernels:
    kernels = kernels_of(request.param, kernels_folder)
    assert kernels.kernels == {*WAYS[request.param]}
    return kernels


@cache
def weight(num_rows: int, columns: int, type: GGMLType = GGMLType.Q4_0) -> Weight:
    """Of whole blocks, so with some columns more if need be."""
    columns = -(-columns // GGML_QUANT_SIZES[type][0]) * GGML_QUANT_SIZES[type][0]
    values = np.random.default_rng(num_rows).standard_normal((num_rows, columns), dtype=np.float32)
    return Weight(type, (num_rows, columns), torch.from_numpy(stored_blocks(values, type)))


def matrix_of(*weights: Weight) -> Tensor:
    return torch.cat([dequantize(weight.blocks, weight.type) for weight in weights])


def segment_of(kernels: Kernels, *weights: Weight) -> NativeSegment:
    return NativeSegment.load(weights, kernels, torch.float32)


def multiply(segment: NativeSegment, x: Tensor, kernel: Kernel) -> Tensor:
    return segment.kernels.multiply(x, segment.tiles, segment.type, segment.num_rows, kernel)


def test_a_library_multiplies_what_it_says(kernels: Kernels) -> None:
    assert kernels.types == TILED_TYPES
    assert "wrong" not in kernels.note


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
@pytest.mark.parametrize(("num_rows", "columns"), [(1, 32), (16, 96), (47, 32), (161, 352), (96, 1024)])
def test_every_kernel_multiplies_as_float64(
    kernels: Kernels, kernel: Kernel, type: GGMLType, num_rows: int, columns: int, dtype: torch.dtype
) -> None:
    stored = weight(num_rows, columns, type)
    segment, matrix = segment_of(kernels, stored), matrix_of(stored)
    counts = [*range(41), 512]
    x = torch.randn(sum(counts), matrix.shape[1]).to(dtype)
    parts = torch.split(x, counts)
    products = [multiply(segment, part, kernel) for part in parts]
    assert is_close(torch.cat(products), x, matrix, kernel), [
        len(y) for y, part in zip(products, parts, strict=True) if not is_close(y, part, matrix, kernel)
    ]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_many_tokens_are_multiplied_by_many_long_rows(
    kernels: Kernels, kernel: Kernel, type: GGMLType
) -> None:
    stored = weight(530, 4320, type)
    segment, matrix = segment_of(kernels, stored), matrix_of(stored)
    x = torch.randn(170, matrix.shape[1]).bfloat16()
    y = multiply(segment, x, kernel)
    assert is_close(y, x, matrix, kernel)
    assert multiply(segment, x[:9], kernel).equal(y[:9])


@pytest.mark.drawn
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_threads", [1, 2, 3, 8, 33])
def test_threads_change_no_bit(kernels: Kernels, kernel: Kernel, num_threads: int) -> None:
    segment, x = segment_of(kernels, weight(*LARGE)), torch.randn(37, LARGE[1]).bfloat16()
    torch.set_num_threads(1)
    alone = multiply(segment, x, kernel)
    torch.set_num_threads(num_threads)
    for _ in range(20):
        assert multiply(segment, x, kernel).equal(alone)


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_a_row_has_the_same_bits_alone_and_among_others(
    kernels: Kernels, kernel: Kernel, type: GGMLType, dtype: torch.dtype
) -> None:
    segment, x = segment_of(kernels, weight(100, 512, type)), torch.randn(70, 512).to(dtype)
    alone = torch.cat([multiply(segment, row.unsqueeze(0), kernel) for row in x])
    for num_tokens in (*range(1, 41), 70):
        assert multiply(segment, x[:num_tokens], kernel).equal(alone[:num_tokens])


def test_inputs_may_lie_anywhere_and_inputs_between_others(kernels: Kernels, kernel: Kernel) -> None:
    stored = weight(40, 64)
    segment, matrix = segment_of(kernels, stored), matrix_of(stored)
    wide = torch.randn(9, 131).bfloat16()
    for start in range(4):
        x = wide[1:, start : start + 64]
        assert is_close(multiply(segment, x, kernel), x, matrix, kernel)
        odd = wide.flatten()[start : start + 5 * 64].view(5, 64)  # contiguous, at any even address
        assert is_close(multiply(segment, odd, kernel), odd, matrix, kernel)


@pytest.mark.drawn
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_what_is_not_finite_stays_in_its_token(
    kernels: Kernels, kernel: Kernel, type: GGMLType, value: float
) -> None:
    segment, x = segment_of(kernels, weight(40, 256, type)), torch.randn(35, 256).bfloat16()
    good = multiply(segment, x, kernel)
    x[7, 33] = value
    y = multiply(segment, x, kernel)
    assert not y[7].isfinite().any()
    others = torch.arange(len(x)) != 7
    assert y[others].equal(good[others])


@pytest.mark.drawn
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("type", "at"), [(type, at) for type in TYPES for at in SCALES_AT[type]])
def test_a_scale_that_is_not_finite_spoils_its_row_alone(
    kernels: Kernels, kernel: Kernel, type: GGMLType, at: int, value: float
) -> None:
    stored, x = weight(40, 256, type), torch.randn(35, 256)
    good = multiply(segment_of(kernels, stored), x, kernel)
    spoilt = stored.blocks.clone()
    spoilt[5, at : at + 2] = torch.from_numpy(np.array([value], np.float16).view(np.uint8))
    y = multiply(segment_of(kernels, replace(stored, rows=spoilt)), x, kernel)
    assert not y[:, 5].isfinite().any()
    others = torch.arange(40) != 5
    assert y[:, others].equal(good[:, others])


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_rows_of_several_weights_are_looked_up_as_stored(kernels: Kernels, type: GGMLType) -> None:
    weights = [weight(num_rows, 4096, type) for num_rows in (5, 100, 64, 3)]
    segment, blocks = segment_of(kernels, *weights), torch.cat([weight.blocks for weight in weights])
    assert segment.tiles.nbytes == blocks.nbytes // 172 * 176
    assert blocks_of(segment.tiles, torch.arange(172), type).equal(blocks)
    ids = torch.tensor([171, 0, 4, 5, 5, 104, 105])
    assert segment.rows(ids).equal(matrix_of(*weights)[ids])
    x = torch.randn(3, 4096)
    assert is_close(segment(x), x, matrix_of(*weights), kernels.kernel_for(x.dtype, 3))


@pytest.mark.usefixtures("threads")
def test_threads_that_multiply_at_once_do_not_disturb_each_other(kernels: Kernels, kernel: Kernel) -> None:
    torch.set_num_threads(2)
    segment = segment_of(kernels, weight(*LARGE))
    wrong: list[bool] = []

    def go_on(x: Tensor) -> None:
        alone = multiply(segment, x, kernel)
        wrong.extend(True for _ in range(20) if not multiply(segment, x, kernel).equal(alone))

    inputs = [torch.randn(num_tokens, LARGE[1]).bfloat16() for num_tokens in (1, 9, 33)]
    threads = [threading.Thread(target=go_on, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.usefixtures("threads")
def test_a_forked_child_multiplies_too(kernels: Kernels, kernel: Kernel) -> None:
    torch.set_num_threads(2)
    segment, x = segment_of(kernels, weight(*LARGE)), torch.randn(5, LARGE[1]).bfloat16()
    y = torch.empty_like(multiply(segment, x, kernel))
    expected = bytes(multiply(segment, x, kernel).float().numpy())
    child = os.fork()
    if not child:
        pointers = (segment.tiles.data_ptr(), *LARGE, x.data_ptr(), y.data_ptr())
        arguments = (int(segment.type), kernel, *pointers, 5, True, True, 2)
        is_done = kernels.library is not None and kernels.library.herd_multiply(*arguments)
        os._exit(0 if is_done and bytes(y.float().numpy()) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture(scope="module", params=DISTINCT_SETS, ids=lambda set: set.name)
def kernels_of_numbers(request: pytest.FixtureRequest, kernels_folder: Path) -> Kernels:
    return kernels_of(request.param, kernels_folder)


def numbers_of(kernels: Kernels, *weights: Weight) -> NativeSegment:
    return NativeSegment.load(weights, kernels, torch.bfloat16, NUMBERS)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("num_rows", "columns"), [(1, 32), (16, 96), (47, 32), (161, 352), (96, 1024), (530, 4320)]
)
def test_numbers_are_multiplied_as_float64_does(
    kernels_of_numbers: Kernels, num_rows: int, columns: int
) -> None:
    stored = weight(num_rows, columns, NUMBERS)
    segment, matrix = numbers_of(kernels_of_numbers, stored), matrix_of(stored)
    counts = [*range(1, 41), 170]
    x = torch.randn(sum(counts), columns).bfloat16()
    y = torch.cat([segment(part) for part in torch.split(x, counts)])
    assert is_close(y, x, matrix, Kernel.FLOAT32)
    assert torch.cat([segment(row.unsqueeze(0)) for row in x]).equal(y)


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.F32, GGMLType.Q5_1], ids=lambda type: type.name)
def test_what_no_kernel_reads_is_multiplied_as_numbers(kernels_of_numbers: Kernels, type: GGMLType) -> None:
    weights = [weight(num_rows, 64, type) for num_rows in (5, 100, 3)]
    segment, matrix = numbers_of(kernels_of_numbers, *weights), matrix_of(*weights).bfloat16()
    ids = torch.tensor([107, 0, 4, 5, 5, 104, 105])
    assert segment.rows(ids).equal(matrix[ids])
    x = torch.randn(3, 64).bfloat16()
    assert is_close(segment(x), x, matrix, Kernel.FLOAT32)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_token_beside_numbers_too(
    kernels_of_numbers: Kernels, value: float
) -> None:
    segment, x = numbers_of(kernels_of_numbers, weight(40, 256, NUMBERS)), torch.randn(35, 256).bfloat16()
    good = segment(x)
    x[7, 33] = value
    others = torch.arange(len(x)) != 7
    assert not segment(x)[7].isfinite().any()
    assert segment(x)[others].equal(good[others])


def test_numbers_are_for_bfloat16_alone(kernels_of_numbers: Kernels) -> None:
    form = WeightForm.FASTEST.with_kernels(kernels_of_numbers)
    assert form.tiles_numbers(64, "cpu", BFLOAT16_BYTES)
    assert not form.tiles_numbers(64, "cpu", FLOAT32_BYTES)
    assert not form.tiles_numbers(48, "cpu", BFLOAT16_BYTES)


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_what_cannot_be_multiplied_is_refused(kernels: Kernels, type: GGMLType) -> None:
    segment = segment_of(kernels, weight(40, 512, type))
    for x in (torch.randn(3, 256), torch.randn(3, 768), torch.randn(3, 512).half()):
        with pytest.raises(ValueError, match="no kernel for x of"):
            segment(x)


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_rows_that_fill_no_tiles_are_not_laid_out(kernels: Kernels, type: GGMLType) -> None:
    stored = weight(32, 512, type)
    tiles = segment_of(kernels, stored).tiles
    for blocks, room in (
        (stored.blocks[:17], tiles),
        (stored.blocks, tiles[:1]),
        (stored.blocks, tiles[:, :0]),
    ):
        with pytest.raises(ValueError, match=r"rows of \d+ bytes do not go into"):
            kernels.lay_out(blocks, room, type)


def test_the_best_set_of_this_machine_is_loaded(kernels_folder: Path) -> None:
    usable = [set for set in INSTRUCTION_SETS if not set.complaint]
    if not usable:
        pytest.skip(INSTRUCTION_SETS[-1].complaint)
    found = load_kernels(kernels_folder)
    others = OTHERS_AND_PROMPTS if usable[0].attends_to_prompts else OTHERS
    assert found.note == f"{usable[0].name} for {', '.join(sorted(type.name for type in TYPES))}, {others}"


def test_a_set_that_this_machine_lacks_is_refused(
    kernels_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set = InstructionSet("avx2", frozenset({"no-such-flag"}), ())
    path = find(kernels_folder, set)
    assert path is not None
    with pytest.raises(BadInput, match="avx2: the processor has no no-such-flag"):
        load_library(set, path)
