"""A model file in a few words."""

from collections import Counter
from pathlib import Path


def describe(path: Path) -> str:
    """Size, type of most weights and number of tensors. Raises ModelFileError."""
    from llama_herd.model.gguf import GGUFFile  # brings torch: not before the demo's first line is shown

    with GGUFFile.open(path) as file:
        sizes: Counter[str] = Counter()
        for tensor in file.tensors.values():
            sizes[tensor.type.name] += tensor.num_bytes
        [(main_type, _)] = sizes.most_common(1) or [("empty", 0)]
        return f"{path.stat().st_size / 1e6:.1f} MB, {main_type}, {len(file.tensors)} tensors"
