"""Tiny models that embed, as files, and what transformers makes of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llama_herd.model.files.safetensors_model import HEAD_NAME
from llama_herd.model.shape.pooling import Pooling
from tests.model.forwards import random_ids
from tests.model.tiny_family import TINY_FAMILIES, TinyFamily
from tests.model.tiny_folder import write_tiny_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The wide Gemma 2 has no difference that a vector would show, and takes long.
NAMES = [name for name in TINY_FAMILIES if name != "gemma2, wide"]
TYPES = {
    Pooling.LAST: gguf.PoolingType.LAST,
    Pooling.MEAN: gguf.PoolingType.MEAN,
    Pooling.CLS: gguf.PoolingType.CLS,
}
#: Longer than any window, than a page and than two.
LENGTHS = (1, 5, 31, 64, 65, 130)
TEXTS = [random_ids(length, length) for length in LENGTHS]
#: Measured: at most 1.3e-6, of numbers of vectors of length 1.
CLOSE = 5e-6
PROMPT = "Instruct: find what answers this, however long you look for it, and leave out all else. " * 2
PROMPTS = {"prompts": {"query": PROMPT, "none": ""}, "default_prompt_name": "none"}


def write_gguf(family: TinyFamily, model: "PreTrainedModel", path: Path, pooling: Pooling) -> Path:
    """The model as llama.cpp converts an embedder."""

    def extra(writer: gguf.GGUFWriter) -> None:
        if family.extra is not None:
            family.extra(writer)
        writer.add_pooling_type(TYPES[pooling])

    return replace(family, extra=extra).write_gguf(model, path)


def write_folder(model: "PreTrainedModel", folder: Path) -> Path:
    """The model as sentence-transformers saves it: without its head, by shorter names."""
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop(HEAD_NAME, None)
    shorter = {name.removeprefix("model."): weight for name, weight in weights.items()}
    save_file(shorter, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.inference_mode()
def pooled(
    oracle: "PreTrainedModel", texts: Sequence[list[int]], pooling: Pooling, num_skipped: int = 0
) -> Tensor:
    """What transformers' states of each text alone come to, in plain words. The first do not count."""
    states = [oracle.model(torch.tensor([ids])).last_hidden_state[0][num_skipped:] for ids in texts]
    of = {
        Pooling.LAST: [rows[-1] for rows in states],
        Pooling.MEAN: [rows.mean(dim=0) for rows in states],
        Pooling.CLS: [rows[0] for rows in states],
    }
    return torch.stack(of[pooling])
