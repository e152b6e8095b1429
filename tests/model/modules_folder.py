"""Folders of sentence-transformers: the JSON files that it writes beside a model."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

PACKAGE = "sentence_transformers.models"
#: A module: its kind and its configuration.
ModuleRow = tuple[str, Mapping[str, object]]

LAST: ModuleRow = ("Pooling", {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True})
MEAN: ModuleRow = ("Pooling", {"embedding_dimension": 64, "pooling_mode": "mean"})
NORMALIZE: ModuleRow = ("Normalize", {})
IDENTITY = "torch.nn.modules.linear.Identity"
TANH = "torch.nn.modules.activation.Tanh"


def dense_row(
    in_features: int, out_features: int, activation: str = IDENTITY, *, bias: bool = False
) -> ModuleRow:
    sizes = {"in_features": in_features, "out_features": out_features}
    return "Dense", {**sizes, "bias": bias, "activation_function": activation}


def write_modules(folder: Path, *rows: ModuleRow, prompts: Mapping[str, object] | None = None) -> Path:
    """Write modules.json with a Transformer and these modules, each with its configuration and weights."""
    folder.mkdir(exist_ok=True)
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.Transformer"}]
    for number, (kind, config) in enumerate(rows, start=1):
        place = folder / f"{number}_{kind}"
        listed.append({"idx": number, "name": str(number), "path": place.name, "type": f"{PACKAGE}.{kind}"})
        place.mkdir(exist_ok=True)
        if config:
            (place / "config.json").write_text(json.dumps(config))
        if kind == "Dense":
            save_file(dense_weights(config), place / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(listed))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def dense_weights(config: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Random weights of a dense layer, the same at every call."""
    num_rows, columns = config["out_features"], config["in_features"]
    assert isinstance(num_rows, int)
    assert isinstance(columns, int)
    generator = torch.Generator().manual_seed(num_rows)
    weights = {"linear.weight": torch.randn(num_rows, columns, generator=generator) / columns**0.5}
    if config["bias"]:
        weights["linear.bias"] = torch.randn(num_rows, generator=generator)
    return weights
