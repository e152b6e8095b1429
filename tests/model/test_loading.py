"""A model as it is laid out in memory: from blocks as from numbers, and whatever becomes of its file."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Timer, get_ident
from typing import cast

import pytest
import torch

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.files.open_model import open_model
from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from llama_herd.model.llama2 import Block, Llama
from llama_herd.model.loader import WeightLoader
from llama_herd.model.weights.form import WeightForm
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.closeness import assert_close
from tests.model.forwards import greedy, logits_after, random_ids, tensors_in
from tests.model.requantised import Requantised
from tests.tiny import WIDE, load_tiny, oracle_logits, write_tiny_gguf

#: Of one type each, then as stock files mix them, within a layer too.
TYPES = [*(type.name for type in SUPPORTED_TYPES), "Q4_K Q6_K", "Q4_0 Q5_1 Q6_K Q8_0 F16"]
#: An embedding that is the output as well is read by rows and multiplied: tried with types of every size.
TIED_TYPES = ["F32", "BF16", "Q4_0", "Q8_0", "Q4_K Q6_K"]
TIED = [pytest.param(type, True, marks=[pytest.mark.slow] * (type not in TIED_TYPES)) for type in TYPES]


def layers_for(type: str) -> int:
    """One layer says what there is to say of one type; several types fall on other parts of a second one."""
    return 1 + (" " in type)


@pytest.mark.long
@pytest.mark.parametrize("type", TYPES)
def test_stored_types_give_the_logits_of_their_dequantised_values(
    wide_file: Callable[..., Path], type: str
) -> None:
    ids, num_layers = random_ids(40), layers_for(type)
    path = wide_file(type, tied=False, num_layers=num_layers)
    expected = oracle_logits(path, ids, **WIDE, num_layers=num_layers)
    assert_close(logits_after(load_tiny(path), ids), expected, atol=5e-5, rtol=0)


def test_loading_reports_the_bytes_of_each_weight(gqa_file: Path) -> None:
    seen: list[tuple[int, int]] = []
    with GGUFModel.open(gqa_file) as file:
        Llama.load(file, on_progress=lambda done, total: seen.append((done, total)))
        assert seen[0] == (file.weight("token_embd.weight").num_bytes, file.num_bytes)
        assert seen[-1] == (file.num_bytes, file.num_bytes)
    assert len(seen) == 1 + 2 * 6 + 2
    assert seen == sorted(set(seen))


def test_a_model_settles_once_its_weights_were_moved(gqa_file: Path) -> None:
    moved = Event()
    mover = Timer(0.05, moved.set)
    mover.start()
    replace(load_tiny(gqa_file), mover=mover).settle()
    assert moved.is_set()


def test_layers_loaded_by_threads_are_those_loaded_by_one(
    gqa_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And torch has its threads back."""
    threads = set[int]()
    load = Block.load.__func__  # type: ignore[attr-defined]

    def noted(loader: WeightLoader, layer: int) -> Block:
        threads.add(get_ident())
        meeting.wait()
        block: Block = load(Block, loader, layer)
        return block

    models, num_threads_before = [], torch.get_num_threads()
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            meeting = Barrier(num_threads, timeout=30)
            monkeypatch.setattr(Block, "load", noted)
            with GGUFModel.open(gqa_file) as file:
                models.append(Llama.load(file))
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(num_threads_before)
    assert len(threads) == 3
    one, two = (list(tensors_in(model)) for model in models)
    assert len(one) == len(two)
    assert all(torch.equal(mine, other) for mine, other in zip(one, two, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    "types",
    [
        *("Q8_0", "Q4_1 Q8_0 Q5_0"),
        *(pytest.param(type, marks=pytest.mark.slow) for type in ("Q4_0", "Q5_1", "MXFP4", "BF16")),
    ],
)
def test_the_bundled_model_says_the_same_from_blocks_as_from_numbers(types: str) -> None:
    with open_model(BUNDLED_MODEL) as file:
        requantised = cast(ModelFile, Requantised(file, types))
        dense, packed = (
            Llama.load(requantised, form=form) for form in (WeightForm.DENSE, WeightForm.QUANTIZED)
        )
    prompts = [random_ids(5, seed) for seed in range(4)]
    assert greedy(packed, prompts, 16) == greedy(dense, prompts, 16)
    assert_close(logits_after(packed, prompts[0]), logits_after(dense, prompts[0]), atol=1e-4, rtol=0)
    assert (
        sum(tensor.nbytes for tensor in tensors_in(packed)) < sum(t.nbytes for t in tensors_in(dense)) * 0.51
    )


@pytest.mark.long
@pytest.mark.parametrize(("type", "tied"), [*((type, False) for type in TYPES), *TIED])
def test_blocks_give_the_logits_of_their_numbers(
    wide_file: Callable[..., Path], type: str, tied: bool
) -> None:
    path, ids = wide_file(type, tied=tied, num_layers=layers_for(type)), random_ids(40)
    with GGUFModel.open(path) as file:
        packed = Llama.load(file, form=WeightForm.QUANTIZED)
    assert_close(logits_after(packed, ids), logits_after(load_tiny(path), ids), atol=5e-5, rtol=0)


def test_a_file_that_is_cut_ends_its_loading_and_harms_no_model_that_is_loaded(
    tmp_path: Path, llama: Llama
) -> None:
    path, ids = write_tiny_gguf(tmp_path / "tiny.gguf"), random_ids(40)
    copy = load_tiny(path)
    with GGUFModel.open(path) as file:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ModelFileError, match=r"tiny\.gguf: tensor 'blk\..*' ended at byte .* cut short"):
            Llama.load(file)
    assert logits_after(copy, ids).equal(logits_after(llama, ids))


def test_a_model_outlives_its_file(tmp_path: Path, llama: Llama) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    copy = load_tiny(path)
    path.unlink()
    ids = random_ids(40)
    assert logits_after(copy, ids).equal(logits_after(llama, ids))
