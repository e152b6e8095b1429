"""What of a family a block computes by, so that native layers leave nothing out."""

from dataclasses import fields

from llama_herd.model.shape.families import Family

#: Of names and of how weights are stored: what the readers of files undo.
STORED = {"name", "architecture", "model_type", "interleaved", "fused", "norms_from_one"}

#: Parts that a native block has, or does not have.
PARTS = {"biased", "bias_keys", "qk_norm", "post_norms", "activation"}

#: What chats are read by.
TEXTS = {"stripping"}

#: What the config turns into numbers: scales, caps, windows, rotations.
NUMBERS = {
    *("scaled_embedding", "multipliers", "caps", "query_scalar", "wide_query_layers", "window"),
    *("global_every", "gguf_window", "local_rope_base", "rope_base", "defaults"),
    *("nullable", "activation_key", "gguf_caps"),
}


def test_every_field_has_one_place() -> None:
    """A new field that changes blocks changes native layers, too."""
    named = [*STORED, *PARTS, *TEXTS, *NUMBERS]
    assert sorted(named) == sorted(field.name for field in fields(Family))
