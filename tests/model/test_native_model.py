"""A whole model that native kernels multiply says what its numbers say."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.files.open_model import open_model
from llama_herd.model.kernels.native import Kernels, load_kernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import NativeSegment
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.closeness import assert_close
from tests.model.forwards import greedy, logits_after, random_ids, reserved
from tests.model.requantised import Requantised
from tests.tiny import load_tiny


@pytest.fixture(scope="module")
def kernels(kernels_folder: Path) -> Kernels:
    kernels = load_kernels(kernels_folder)
    if not isinstance(kernels, Kernels):
        pytest.skip(kernels.note)
    return kernels


class Bundled:
    """The bundled model in other types, natively and as its numbers; each made once."""

    def __init__(self, file: ModelFile, kernels: Kernels) -> None:
        self._file = file
        self._native = WeightForm.FASTEST.with_kernels(kernels)
        self._files: dict[str, ModelFile] = {}
        self._models: dict[tuple[str, WeightForm, torch.dtype], Llama] = {}

    def native(self, types: str, dtype: torch.dtype) -> Llama:
        return self._model(types, self._native, dtype)

    def dense(self, types: str, dtype: torch.dtype) -> Llama:
        return self._model(types, WeightForm.DENSE, dtype)

    def _model(self, types: str, form: WeightForm, dtype: torch.dtype) -> Llama:
        key = (types, form, dtype)
        if key not in self._models:
            file = self._files.setdefault(types, cast(ModelFile, Requantised(self._file, types)))
            self._models[key] = Llama.load(file, dtype=dtype, form=form)
        return self._models[key]


@pytest.fixture(scope="module")
def bundled(kernels: Kernels) -> Iterator[Bundled]:
    with open_model(BUNDLED_MODEL) as file:
        yield Bundled(file, kernels)


@pytest.mark.long
@pytest.mark.parametrize("types", ["Q4_0", "Q8_0", "Q4_0 Q8_0 Q5_1", "Q4_1 Q5_0"])
def test_in_float32_it_says_the_same_as_its_numbers(bundled: Bundled, types: str) -> None:
    native, dense = bundled.native(types, torch.float32), bundled.dense(types, torch.float32)
    assert isinstance(native.embedding, NativeSegment)
    prompts = [random_ids(5, seed) for seed in range(4)]
    assert greedy(native, prompts, 32) == greedy(dense, prompts, 32)
    ids = random_ids(40)
    assert_close(logits_after(native, ids), logits_after(dense, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "types", ["Q4_K Q6_K", "Q4_0 Q6_K Q8_0 Q5_1 Q4_K F16 Q4_0", "Q5_K IQ4_XS IQ4_NL Q6_K Q3_K Q2_K"]
)
def test_types_may_differ_within_a_layer(
    kernels: Kernels, wide_file: Callable[..., Path], types: str
) -> None:
    path, ids = wide_file(types), random_ids(40)
    with GGUFModel.open(path) as file:
        native = Llama.load(file, form=WeightForm.FASTEST.with_kernels(kernels))
    kinds = [[type(segment) for segment in block.attention.qkv.segments] for block in native.blocks]
    assert any(len(found) > 1 and NativeSegment in found for found in kinds)
    assert_close(logits_after(native, ids), logits_after(load_tiny(path), ids), atol=5e-5, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("num_tokens", [1, 5, 40])
def test_in_bfloat16_it_is_within_six_times_of_what_bfloat16_itself_rounds(
    bundled: Bundled, num_tokens: int
) -> None:
    exact = bundled.dense("Q4_0", torch.float32)
    native, dense = bundled.native("Q4_0", torch.bfloat16), bundled.dense("Q4_0", torch.bfloat16)
    away = dict.fromkeys(("native", "dense"), 0.0)
    for seed in range(4):
        ids = random_ids(num_tokens, seed)
        expected = logits_after(exact, ids)
        for name, llama in (("native", native), ("dense", dense)):
            cache = Cache(llama.config, 8, torch.device("cpu"), torch.bfloat16)
            away[name] += float((logits_after(llama, ids, cache) - expected).square().mean())
    assert away["native"] <= 6**2 * away["dense"]


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_256_rows_are_as_right_as_one(bundled: Bundled, exact_rows: Tensor, dtype: torch.dtype) -> None:
    found, expected = prefilled_and_decoded(bundled.native("Q4_0", dtype)), exact_rows
    if dtype is torch.float32:
        assert_close(found, expected, atol=1e-4, rtol=0)
        return
    dense = prefilled_and_decoded(bundled.dense("Q4_0", dtype))
    away = [(one - expected).square().mean(dim=-1) for one in (found, dense)]  # (forwards, R) each
    assert away[0].mean() <= 6**2 * away[1].mean()
    assert away[0].max() <= 6**2 * away[1].max()


@pytest.fixture(scope="module")
def exact_rows(bundled: Bundled) -> Tensor:
    return prefilled_and_decoded(bundled.dense("Q4_0", torch.float32))


def prefilled_and_decoded(llama: Llama) -> Tensor:
    """Logits (4, R, V) after all texts but their last three tokens, in one batch, and after each of these."""
    texts = [random_ids(4 + row % 5, row) for row in range(256)]
    dtype = llama.embedding.rows(torch.tensor([0])).dtype
    cache = Cache(llama.config, len(texts), dtype=dtype)
    pages = [reserved(cache, str(row), len(text)) for row, text in enumerate(texts)]
    rows = [*zip(pages, texts, strict=True)]
    chunks = [[Chunk(own, 0, text[:-3], True) for own, text in rows]]
    for left in (3, 2, 1):
        chunks.append([Chunk(own, len(text) - left, [text[-left]], True) for own, text in rows])
    return torch.stack([llama.forward(Batch.from_chunks(of_forward), cache) for of_forward in chunks])


@pytest.mark.parametrize("types", ["BF16", "F16", "F16 Q4_0 Q5_1"])
def test_numbers_in_bfloat16_are_multiplied_natively_and_in_float32_by_torch(
    kernels: Kernels, wide_file: Callable[..., Path], types: str
) -> None:
    if not kernels.has_numbers:
        pytest.skip("no tiles")
    path, ids = wide_file(types), random_ids(40)
    form = WeightForm.FASTEST.with_kernels(kernels)
    with GGUFModel.open(path) as file:
        native = Llama.load(file, form=form, dtype=torch.bfloat16)
        dense = Llama.load(file, dtype=torch.bfloat16)
        assert not Llama.load(file, form=form).is_native
    assert native.is_native
    exact = logits_after(load_tiny(path), ids)
    away = [(logits_after(one, ids, bfloat16_cache(one)) - exact).abs().mean() for one in (native, dense)]
    assert away[0] <= 6 * away[1]


def bfloat16_cache(llama: Llama) -> Cache:
    return Cache(llama.config, 8, torch.device("cpu"), torch.bfloat16)
