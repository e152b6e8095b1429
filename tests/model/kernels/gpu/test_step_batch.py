"""Triton's attention reads the pages of a step where the device's own table of slots names them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.model import llama2
from llama_herd.model.attention_inputs import Scoring
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.llama2 import Llama
from llama_herd.model.shape.families import FAMILIES
from llama_herd.model.weights.form import WeightForm
from llama_herd.worker.engine.prefill import Prefill, PromptSpan
from llama_herd.worker.engine.slots import NUM_FIELDS, POSITION, TOKEN, Slots
from tests.closeness import assert_close
from tests.model.forwards import random_ids
from tests.model.tiny_family import TINY_FAMILIES
from tests.tiny import write_tiny_gguf

#: Of each sequence: its slot, its pages, its length, and how much of it is computed already. All but the
#: last token of an incomplete one are there; the last one of the others is a row.
ROWS = {4: ((7, 2), 70, 69), 0: ((5, 1, 3), 131, 130), 2: ((6,), 9, 5)}
PROMPTS = {2: (5, 3), 1: (66, 30), 3: (0, 2)}  # slot: position of the first token, how many
PAGES = {1: (4, 8), 3: (9,)}
SCORINGS = {"all": Scoring(), "window": Scoring(window=40), "cap": Scoring(0.3, 50, 4.0)}


@pytest.fixture
def llama(device: torch.device, tmp_path: Path) -> Llama:
    with GGUFModel.open(write_tiny_gguf(tmp_path / "tiny.gguf")) as file:
        return Llama.load(file, device)


def with_attention(llama: Llama, **changes: Any) -> Llama:
    blocks = (replace(one, attention=replace(one.attention, **changes)) for one in llama.blocks)
    return replace(llama, blocks=tuple(blocks))


def text_of(slot: int) -> list[int]:
    return random_ids(140, slot)


def computed_before(llama: Llama, device: torch.device) -> Cache:
    """A cache that holds what was computed of each sequence, and nonsense elsewhere."""
    cache = Cache(llama.config, 12, device, consecutive=False)
    cache.storage[:, :, :, :12] = 1e4
    before = [Chunk(pages, 0, text_of(slot)[:num], 0) for slot, (pages, _, num) in ROWS.items()]
    before.append(Chunk(PAGES[1], 0, text_of(1)[: PROMPTS[1][0]], 0))
    llama.hidden(Batch.from_chunks(before, device), cache)
    return cache


def found_by_host(llama: Llama, device: torch.device) -> tuple[Tensor, Tensor]:
    """What is behind the last layer for rows and for prompts, told chunk by chunk, in plain torch."""
    cache, chunks = computed_before(llama, device), []
    for slot, (start, num) in PROMPTS.items():
        pages = PAGES.get(slot) or ROWS[slot][0]
        chunks.append(Chunk(pages, start, text_of(slot)[start : start + num], 0))
    prompts = llama.hidden(Batch.from_chunks(chunks, device), cache)
    last = [
        Chunk(pages, length - 1, text_of(slot)[length - 1 : length], 0)
        for slot, (pages, length, _) in ROWS.items()
    ]
    return llama.hidden(Batch.from_chunks(last, device), cache), prompts


def found_by_device(llama: Llama, cache: Cache, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same, told by slots."""
    slots = Slots(5, cache.max_length, cache.trash_page, device)
    for slot in {*ROWS, *PROMPTS}:
        text, pages = text_of(slot), PAGES.get(slot) or ROWS[slot][0]
        slots.words[slot, NUM_FIELDS : NUM_FIELDS + len(pages)] = torch.tensor(pages)
        slots.words[slot, -cache.max_length :][: len(text)] = torch.tensor(text)
    for slot, (_, length, _) in ROWS.items():
        slots.words[slot, TOKEN], slots.words[slot, POSITION] = text_of(slot)[length - 1], length - 1
    prefill = Prefill.of([PromptSpan(slot, start, num) for slot, (start, num) in PROMPTS.items()])
    rows = slots.rows(torch.tensor([*ROWS, slots.trash], device=device))
    spans = torch.tensor(prefill.words(slots.trash), device=device).view(4, -1)
    found, first = llama.hidden(slots.batch(rows, spans, prefill.bucket), cache), len(ROWS) + 1
    assert found.isfinite().all()
    return found[: len(ROWS)], found[first : first + prefill.num_tokens]


@pytest.mark.parametrize(
    ("scoring", "has_kernel"), [*((one, True) for one in SCORINGS), ("cap", False)], ids=str
)
def test_rows_and_prompts_told_by_the_device_give_what_those_told_by_the_host_give(
    llama: Llama, device: torch.device, scoring: str, has_kernel: bool
) -> None:
    """Without a kernel for whole spans prompts attend token by token."""
    from llama_herd.model.kernels.gpu.attention import TritonAttention
    from llama_herd.model.kernels.gpu.rows import TritonRotation
    from llama_herd.model.kernels.gpu.span_attention import TritonSpanAttention

    llama = with_attention(llama, scoring=SCORINGS[scoring])
    kernels = with_attention(
        llama,
        native=TritonAttention(132),
        prefill=TritonSpanAttention() if has_kernel else None,
        rotation=TritonRotation(),
    )
    found = found_by_device(kernels, computed_before(llama, device), device)
    for part, expected in zip(found, found_by_host(llama, device), strict=True):
        assert_close(part, expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("model_type", [family.model_type for family in FAMILIES])
def test_each_family_is_computed_by_kernels_alone(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    from llama_herd.model.kernels.gpu.attention import TritonAttention
    from llama_herd.model.kernels.gpu.rows import TritonElementwise, TritonRotation
    from llama_herd.model.kernels.gpu.span_attention import TritonSpanAttention
    from llama_herd.model.kernels.gpu.triton_kernels import TritonKernels

    tiny = next(one for one in TINY_FAMILIES.values() if one.model_type == model_type)
    kernels = TritonKernels(
        *("", frozenset(), TritonAttention(4), device.type, TritonSpanAttention()),
        elementwise=TritonElementwise(),
        rotation=TritonRotation(),
    )
    with GGUFModel.open(tiny.write_gguf(tiny.model(), tmp_path / "tiny.gguf")) as file:
        forms = WeightForm.DENSE, WeightForm.FASTEST.with_kernels(kernels)
        # The last two layers: where a family has layers with a window and without, one of each.
        plain, fused = (
            replace(llama, blocks=llama.blocks[-2:])
            for llama in (Llama.load(file, device, form=form) for form in forms)
        )
    expected, cache = found_by_host(plain, device), computed_before(plain, device)
    for module, name in ((llama2, "rotate"), (torch, "rsqrt"), (llama2, "ACTIVATIONS"), (cache, "write")):
        monkeypatch.setattr(module, name, None)
    for part, exact in zip(found_by_device(fused, cache, device), expected, strict=True):
        assert_close(part, exact, atol=2e-4, rtol=1e-4)


def test_without_prompts_there_are_rows_alone(llama: Llama, device: torch.device) -> None:
    slots = Slots(2, 128, 11, device)
    batch = slots.batch(slots.rows(torch.tensor([1, 0, 2], device=device)))
    assert batch.is_short
    assert batch.seen.rows.tolist() == batch.each_seen.rows.tolist() == [0, 1, 2]
