"""A model in a few words."""

from pathlib import Path


def describe(path: Path) -> str:
    """Bytes of the weights, the type of most, and their number. Raises ModelFileError."""
    # Brings torch: not before the demo's first line is shown.
    from llama_herd.model.gguf_model import expected_shapes
    from llama_herd.model.model_file import open_model

    with open_model(path) as model:
        names = [name for name in expected_shapes(model.config) if name in model]
        main_type = model.weight("blk.0.ffn_down.weight").type.name
        return f"{model.num_bytes / 1e6:.1f} MB, {main_type}, {len(names)} tensors"
