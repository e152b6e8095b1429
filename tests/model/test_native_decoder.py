"""A step in one native call says to the bit what the model's forward says, and draws what torch draws."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.native_decoder import NativeDecoder, Token
from llama_herd.model.native_layers import FEW_TOKENS, NativeLayers
from llama_herd.model.tiling import FIXED
from llama_herd.model.weights.form import WeightForm
from tests.model.forwards import VOCAB_SIZE, random_ids, reserved

pytestmark = pytest.mark.long

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module")
def kernels(set_kernels: Kernels) -> Kernels:
    return set_kernels.with_threads(2)


def load(path: Path, kernels: Kernels, dtype: torch.dtype = torch.float32) -> Llama:
    with GGUFModel.open(path) as file:
        return Llama.load(file, dtype=dtype, form=WeightForm.FASTEST.with_kernels(kernels))


class Rows:
    """Prompts of many lengths in a cache of their own, and what decodes after them."""

    def __init__(self, llama: Llama, dtype: torch.dtype, numbers: list[int]) -> None:
        self._llama = llama
        self._cache = Cache(llama.config, num_pages=4 * len(numbers), dtype=dtype)
        prompts = [random_ids(1 + 7 * number % 150, number) for number in numbers]
        self._pages = [reserved(self._cache, str(number), 170) for number in numbers]
        self._places = [len(ids) for ids in prompts]
        self._ids = [self._follows(*one) for one in zip(self._pages, prompts, strict=True)]
        self.decoder = NativeDecoder.if_plain(llama, self._cache)

    def _follows(self, pages: tuple[int, ...], prompt: list[int]) -> int:
        """The likeliest token after a prompt, which is computed by itself."""
        logits = self._llama.forward(Batch.from_chunks([Chunk(pages, 0, prompt, 1)]), self._cache)
        return int(logits.argmax())

    def decoded(self, num_steps: int) -> list[tuple[Tensor, list[int]]]:
        """Logits and likeliest tokens of some steps, each in one call."""
        assert self.decoder is not None
        return [self._noted(*self._decode()) for _ in range(num_steps)]

    def computed(self, num_steps: int) -> list[tuple[Tensor, list[int]]]:
        """The same by forwards of the model."""
        return [self._noted(*self._forward()) for _ in range(num_steps)]

    def _decode(self) -> tuple[Tensor, list[int]]:
        tokens = [
            Token(token_id, place, pages[0])
            for token_id, place, pages in zip(self._ids, self._places, self._pages, strict=True)
        ]
        assert self.decoder is not None
        found = self.decoder(tokens)
        assert found.largest == found.logits.amax(dim=-1).tolist()
        return found.logits.clone(), found.ids

    def _forward(self) -> tuple[Tensor, list[int]]:
        chunks = [
            Chunk(pages, place, [token_id], 1)
            for pages, place, token_id in zip(self._pages, self._places, self._ids, strict=True)
        ]
        logits = self._llama.forward(Batch.from_chunks(chunks), self._cache)
        return logits, logits.max(dim=-1).indices.tolist()

    def _noted(self, logits: Tensor, ids: list[int]) -> tuple[Tensor, list[int]]:
        self._ids, self._places = ids, [place + 1 for place in self._places]
        return logits, ids


def assert_same(found: list[tuple[Tensor, list[int]]], expected: list[tuple[Tensor, list[int]]]) -> None:
    for (logits, ids), (expected_logits, expected_ids) in zip(found, expected, strict=True):
        assert logits.equal(expected_logits)
        assert ids == expected_ids


@pytest.mark.drawn(1)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("types", ["Q8_0", "Q4_K Q6_K Q8_0", "Q4_0 Q5_1 IQ4_NL"])
def test_it_says_what_a_forward_says(
    kernels: Kernels, wide_file: Callable[..., Path], types: str, dtype: torch.dtype, tied: bool
) -> None:
    """Also where query heads share keys, as two do here, and from one page into the next."""
    llama = load(wide_file(types, tied=tied), kernels, dtype)
    for num_rows in (1, 5, 20, FEW_TOKENS):
        numbers = list(range(num_rows))
        found = Rows(llama, dtype, numbers).decoded(3)
        assert_same(found, Rows(llama, dtype, numbers).computed(3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["Qwen 2", "Qwen 3"])
def test_biases_and_norms_of_heads_go_with_it(
    kernels: Kernels, family_file: Callable[[str], Path], family: str, dtype: torch.dtype
) -> None:
    llama, numbers = load(family_file(family), kernels, dtype), list(range(6))
    assert_same(Rows(llama, dtype, numbers).decoded(3), Rows(llama, dtype, numbers).computed(3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_and_forwards_read_what_the_other_has_written(
    kernels: Kernels, wide_file: Callable[..., Path], dtype: torch.dtype
) -> None:
    llama, numbers = load(wide_file("Q8_0"), kernels, dtype), list(range(6))
    mixed = Rows(llama, dtype, numbers)
    found = mixed.decoded(2) + mixed.computed(2) + mixed.decoded(70)
    assert_same(found, Rows(llama, dtype, numbers).computed(74))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_says_alone_what_it_says_among_others(
    kernels: Kernels, wide_file: Callable[..., Path], dtype: torch.dtype
) -> None:
    """As long as they are few: many are multiplied by AMX, where there is one."""
    llama, numbers = load(wide_file("Q8_0"), kernels, dtype), list(range(8))
    among = Rows(llama, dtype, numbers).decoded(3)
    for number in numbers:
        for (logits, ids), (of_one, id_of_one) in zip(
            among, Rows(llama, dtype, [number]).decoded(3), strict=True
        ):
            assert logits[number].equal(of_one[0])
            assert ids[number] == id_of_one[0]


def test_windows_of_layers_go_with_it(kernels: Kernels, wide_file: Callable[..., Path]) -> None:
    llama = load(wide_file("Q4_0"), kernels, torch.float32)
    config = replace(llama.config, windows=(24, 0))
    blocks = tuple(
        replace(
            block,
            attention=replace(
                block.attention, scoring=replace(block.attention.scoring, scale=0.3, window=window, cap=3.0)
            ),
        )
        for block, window in zip(llama.blocks, config.windows, strict=True)
    )
    native = NativeLayers.if_native(config, [block.parts for block in blocks])
    changed = replace(llama, config=config, blocks=blocks, native=native)
    numbers = list(range(8))
    expected = Rows(replace(changed, native=None), torch.float32, numbers).computed(3)
    assert_same(Rows(changed, torch.float32, numbers).decoded(3), expected)
    assert not expected[0][0].equal(Rows(llama, torch.float32, numbers).computed(1)[0][0])


def test_a_token_beyond_the_vocabulary_is_refused(kernels: Kernels, wide_file: Callable[..., Path]) -> None:
    decoder = Rows(load(wide_file("Q8_0"), kernels), torch.float32, [0]).decoder
    assert decoder is not None
    for wrong in (-1, VOCAB_SIZE):
        with pytest.raises(IndexError, match=str(wrong)):
            decoder([Token(3, 0, 0), Token(wrong, 0, 0)])


def test_what_it_would_leave_out_is_computed_by_forwards(
    kernels: Kernels, wide_file: Callable[..., Path]
) -> None:
    llama = load(wide_file("Q8_0"), kernels)
    cache = Cache(llama.config, num_pages=4)

    def is_plain(cache: Cache = cache, **changes: Any) -> bool:
        return NativeDecoder.if_plain(replace(llama, **changes), cache) is not None

    assert is_plain()
    for field in ("embedding_scale", "logit_divisor", "logit_cap", "local_rope_base"):
        scaled: dict[str, Any] = {field: 2.0}
        assert not is_plain(config=replace(llama.config, **scaled))
    assert not is_plain(native=None)
    assert not is_plain(tiling=FIXED)
    assert not is_plain(output=None)
    assert llama.output is not None
    assert not is_plain(output=replace(llama.output, bias=torch.zeros(VOCAB_SIZE)))
    assert not is_plain(cache=Cache(llama.config, num_pages=4, consecutive=False))
    assert not is_plain(cache=Cache(llama.config, num_pages=4, dtype=torch.bfloat16))
    dense = load(wide_file("F32"), kernels)
    assert not is_plain(embedding=dense.embedding)
    assert not is_plain(output=dense.output)
