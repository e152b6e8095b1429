"""Good models to damage: every family, every type of weights, parts, folders and shards."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gguf
from gguf import TokenType
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from tests.model.tiny_family import TINY_FAMILIES
from tests.model.tiny_folder import write_tiny_folder, write_tiny_tokenizer
from tests.tiny import WIDE, tiny_vocabulary, write_tiny_gguf

#: Layers and tokens enough for all that a family does.
SMALL = {"num_hidden_layers": 2, "vocab_size": len(tiny_vocabulary())}


def write_good_models(folder: Path) -> None:
    """Write a folder for each model, named for what it is; `target` tells what of it is opened."""
    for name, family in TINY_FAMILIES.items():
        if name == "gemma2, wide":  # a formula of 46 layers, else Gemma 2
            continue
        small = replace(family, config={**family.config, **SMALL})
        model = small.model()
        small.write_gguf(model, _made(folder / f"{name} gguf") / "m.gguf")
        write_tiny_tokenizer(small.write_folder(model, folder / f"{name} folder"))
    for type in SUPPORTED_TYPES:
        path = _made(folder / type.name) / "m.gguf"
        write_tiny_gguf(path, type=type.name, num_layers=1, chat_template="{{ messages }}", **WIDE)
    write_tiny_gguf(_made(folder / "parts") / "m.gguf", part_tensors=8)
    write_tiny_gguf(_made(folder / "rope") / "m.gguf", rope_factors=True, tied=True)
    _write_byte_level(_made(folder / "vocabulary") / "m.gguf")
    whole = write_tiny_folder(folder / "whole", write_tiny_gguf(folder / "m.gguf"))
    (folder / "m.gguf").unlink()
    shutil.copytree(whole, folder / "shards")
    _cut_in_shards(folder / "shards")


def target(folder: Path) -> Path:
    """What names the model of one of these folders: a file, its first part, or the folder."""
    return min(folder.glob("*.gguf"), default=folder)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _write_byte_level(path: Path) -> None:
    """A byte-level vocabulary alone."""
    engine = Engine(BPE())
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    engine.train_from_iterator(["the herd of llamas and the queue of the herd"] * 9, trainer)
    model = json.loads(engine.to_str())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([*model["vocab"], "<s>", "</s>"])
    writer.add_token_types([TokenType.NORMAL] * len(model["vocab"]) + [TokenType.CONTROL] * 2)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(len(model["vocab"]))
    writer.add_eos_token_id(len(model["vocab"]) + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _cut_in_shards(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {f"model-0000{i}-of-00002.safetensors": names[i - 1 :: 2] for i in (1, 2)}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = ", ".join(f'"{name}": "{file}"' for file, held in shards.items() for name in held)
    index = f'{{"metadata": {{"total_size": 1}}, "weight_map": {{{weight_map}}}}}'
    (folder / "model.safetensors.index.json").write_text(index)
