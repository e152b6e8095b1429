"""A model in a few words."""

from pathlib import Path


def describe(path: Path) -> str:
    """Bytes of the weights, the type of the largest, and their number. Raises ModelFileError."""
    # Brings torch: not before the demo's first line is shown.
    from llama_herd.model.files.model_file import open_model

    with open_model(path) as model:
        main_type = max(model.tensors, key=lambda info: info.num_bytes).type.name
        return f"{model.num_bytes / 1e6:.1f} MB, {main_type}, {len(model.tensors)} tensors"
