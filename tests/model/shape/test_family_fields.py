"""What of a family a block computes by: a native block asks that, and no list of its own."""

from dataclasses import fields, replace
from typing import Any

import pytest

from llama_herd.model.shape.families import FAMILIES, LLAMA, OF_A_BLOCK, Family

#: Of names and of how weights are stored: what the readers of files undo.
STORED = {"name", "architecture", "model_type", "interleaved", "fused", "norms_from_one"}

#: Parts that a native block has, or does not have.
PARTS = {"biased", "bias_keys", "qk_norm"}

#: What chats are read by.
TEXTS = {"stripping"}

#: What the config turns into numbers: scales, caps, windows, rotations.
NUMBERS = {
    *("scaled_embedding", "multipliers", "caps", "query_scalar", "wide_query_layers", "window"),
    *("global_every", "gguf_window", "local_rope_base", "rope_base", "defaults"),
    *("nullable", "activation_key", "gguf_caps"),
}


def test_every_field_has_one_place() -> None:
    """A new field of a family that changes its blocks must be among `OF_A_BLOCK`."""
    named = [*STORED, *PARTS, *TEXTS, *NUMBERS, *OF_A_BLOCK]
    assert sorted(named) == sorted(field.name for field in fields(Family))


@pytest.mark.parametrize("field", OF_A_BLOCK)
def test_a_block_that_computes_anything_else_is_not_usual(field: str) -> None:
    assert LLAMA.has_usual_block
    other: Any = "gelu_pytorch_tanh" if field == "activation" else True
    assert not replace(LLAMA, **{field: other}).has_usual_block


def test_the_usual_ones_are_these() -> None:
    usual = {family.name for family in FAMILIES if family.has_usual_block}
    assert usual == {"Llama", "Mistral", "Qwen 2", "Qwen 3", "Granite", "Phi-3"}
