"""What a folder of sentence-transformers is for: its modules.json, and the configurations that it names.

Source: https://github.com/huggingface/sentence-transformers, classes `Pooling`, `Dense` and `LogitScore`.
"""

import re
from pathlib import Path
from typing import NamedTuple

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.json_file import parse_json, read_json, read_text
from llama_herd.model.reading.metadata import (
    MAX_CONTEXT,
    MAX_HIDDEN,
    MAX_VOCAB,
    OTHER_MODEL,
    Metadata,
    quoted,
)
from llama_herd.model.shape.pooling import Pooling
from llama_herd.model.shape.purpose import Dense, Embeds, Generates, Purpose, Ranks

MODULES_NAME = "modules.json"
PROMPTS_NAME = "config_sentence_transformers.json"
TEXTS_NAME = "sentence_bert_config.json"  # of the first module
CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
MAX_BYTES = 1 << 20

#: Modules that are computed here, one after the other.
EMBEDS, RANKS = re.compile("Transformer Pooling( Dense)*( Normalize)?"), "Transformer LogitScore"
#: A module's class begins so, wherever in the package a version has it.
PACKAGE = "sentence_transformers."

POOLINGS = {"lasttoken": Pooling.LAST, "mean": Pooling.MEAN, "cls": Pooling.CLS}
#: Flags of before `pooling_mode`.
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
TANH = "torch.nn.modules.activation.Tanh"
ACTIVATIONS = {"torch.nn.modules.linear.Identity": "Identity", TANH: "Tanh"}


class Module(NamedTuple):
    """A row of modules.json: its class without the package, and its folder."""

    kind: str
    folder: Path

    def config(self, name: str = CONFIG_NAME) -> Metadata:
        """Its configuration; empty if it has none."""
        path = self.folder / name
        return read_json(path, MAX_BYTES).without_nulls() if path.is_file() else Metadata({}, str(path))


def folder_purpose(folder: Path, hidden_size: int) -> Purpose:
    """The purpose of a Hugging Face folder. Raises ModelFileError, which names file and key."""
    if not (folder / MODULES_NAME).is_file():
        return Generates()
    modules = _modules(folder)
    kinds = " ".join(module.kind for module in modules)
    if kinds == RANKS:
        return _ranks(modules[1], Module("", folder).config(PROMPTS_NAME))
    if not EMBEDS.fullmatch(kinds):
        problem = f"has the modules {quoted(kinds)}, which is not supported"
        raise ModelFileError(f"{folder / MODULES_NAME}: {problem}. {OTHER_MODEL}")
    return _embeds(modules, Module("", folder).config(PROMPTS_NAME), hidden_size)


def _modules(folder: Path) -> list[Module]:
    path = folder / MODULES_NAME
    rows = parse_json(read_text(path, MAX_BYTES), str(path))
    modules = list[Module]()
    for row in rows if isinstance(rows, list) else ():
        entry = Metadata(row if isinstance(row, dict) else {}, str(path))
        type, place = entry.text("type"), entry.text("path")
        if not type.startswith(PACKAGE):
            raise entry.error("type", f"is {quoted(type)}, whose code is not run", OTHER_MODEL)
        if not re.fullmatch(r"[\w.-]*", place) or place in (".", "..") or bool(place) != bool(modules):
            raise entry.error("path", f"is {quoted(place)}: the first module's is '', others name a folder")
        modules.append(Module(type.rpartition(".")[2], folder / place))
    return modules


def _embeds(modules: list[Module], prompts: Metadata, hidden_size: int) -> Embeds:
    texts, pooling, *others = modules[0].config(TEXTS_NAME), modules[1].config(), *modules[2:]
    if texts.flag("do_lower_case", False):
        raise texts.error("do_lower_case", "is true, which is not supported", OTHER_MODEL)
    dense: list[Dense] = []
    for module in others:
        if module.kind == "Dense":
            dense.append(_dense(module, dense[-1].out_features if dense else hidden_size))
    return Embeds(
        _pooling(pooling),
        is_normalised=modules[-1].kind == "Normalize",
        dense=tuple(dense),
        prompts=(named := _prompts(prompts)),
        default_prompt=_default_prompt(prompts, named),
        pools_prompt=pooling.flag("include_prompt", True),
        max_tokens=texts.integer("max_seq_length", 1, MAX_CONTEXT) if "max_seq_length" in texts else None,
    )


def _pooling(config: Metadata) -> Pooling:
    stated = config.get(
        "pooling_mode", [mode for key, mode in OLD_POOLINGS.items() if config.flag(key, False)]
    )
    modes = stated if isinstance(stated, list) else [stated]
    mode = " + ".join(map(str, modes)) if modes else "mean"
    if mode not in POOLINGS:
        raise config.error(
            "pooling_mode", f"is {quoted(mode)}, supported are {', '.join(POOLINGS)}", OTHER_MODEL
        )
    return POOLINGS[mode]


def _dense(module: Module, in_features: int) -> Dense:
    config = module.config()
    if config.flag("use_residual", False):
        raise config.error("use_residual", "is true, which is not supported", OTHER_MODEL)
    for key in ("module_input_name", "module_output_name"):
        config.require(key, "sentence_embedding")
    stated, activation = (
        config.integer("in_features", 1, MAX_HIDDEN),
        config.text("activation_function", TANH),
    )
    if stated != in_features:
        raise config.error("in_features", f"is {stated}, but what comes before it has {in_features}")
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise config.error(
            "activation_function", f"is {quoted(activation)}, supported are {known}", OTHER_MODEL
        )
    weights = module.folder / WEIGHTS_NAME
    if not weights.is_file():
        raise ModelFileError(
            f"{weights}: missing. Fetch it, or save the model anew: pickles are never opened."
        )
    width, has_bias = config.integer("out_features", 1, MAX_HIDDEN), config.flag("bias", True)
    return Dense(weights, in_features, width, has_bias, ACTIVATIONS[activation])


def _ranks(module: Module, prompts: Metadata) -> Ranks:
    config = module.config()
    config.require("module_input_name", "causal_logits")
    labels = [config.integer("true_token_id", 0, MAX_VOCAB)]
    if "false_token_id" in config:
        labels.append(config.integer("false_token_id", 0, MAX_VOCAB))
    named = _prompts(prompts)
    default = _default_prompt(prompts, named)
    return Ranks(tuple(labels), instruction=named[default] if default is not None else "")


def _prompts(config: Metadata) -> dict[str, str]:
    stated = config.nested("prompts", {}).without_nulls()
    return {name: stated.text(name) for name in stated}


def _default_prompt(config: Metadata, prompts: dict[str, str]) -> str | None:
    if "default_prompt_name" not in config:
        return None
    name = config.text("default_prompt_name")
    if name not in prompts:
        raise config.error("default_prompt_name", f"is {quoted(name)}, known are {quoted([*prompts])}")
    return name
