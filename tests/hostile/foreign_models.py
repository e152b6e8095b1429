"""Sound files that no worker serves: what people have at hand, and try."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGUFEndian, TokenType
from safetensors.torch import save_file

from tests.tiny import tiny_vocabulary, write_tiny_gguf

NUM_TOKENS = len(tiny_vocabulary())


def big_endian(folder: Path) -> Path:
    return _write(folder, "llama", {"w": np.ones((4, 8), "f")}, order=GGUFEndian.BIG)


def unknown_architecture(folder: Path) -> Path:
    return _write(folder, "mamba", {"w": np.ones((4, 8), "f"), "v": np.ones(8, np.float16)})


def experts(folder: Path) -> Path:
    return _write(folder, "llama", {"blk.0.ffn_up_exps.weight": np.ones((2, 4, 8), "f")}, num_experts=2)


def vocabulary(folder: Path) -> Path:
    return _write(folder, "llama", {})


def unknown_type(folder: Path) -> Path:
    """Its 32 values of 4 bytes have a type that nobody has heard of."""
    return _of_type(folder, 99)


def old_type(folder: Path) -> Path:
    return _of_type(folder, 31)


def one_part(folder: Path) -> Path:
    write_tiny_gguf(folder / "m.gguf", type="Q8_0", part_tensors=8)
    first, second, third = sorted(folder.glob("m-*.gguf"))
    first.unlink()
    second.unlink()
    return third


def cut_off(folder: Path) -> Path:
    """In the middle of the tensor table."""
    path = _write(folder, "llama", {"w": np.ones((4, 8), "f"), "cut": np.ones((4, 8), "f")})
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"cut") + 9])
    return path


def safetensors_alone(folder: Path) -> Path:
    save_file({"w": torch.ones(4, 8)}, folder / "model.safetensors")
    return folder / "model.safetensors"


def unknown_family(folder: Path) -> Path:
    """With weights of a type that is not read, too."""
    model = folder / "m"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"model_type": "bert", "hidden_size": 8, "eos_token_id": 2})
    )
    header = {"w": {"dtype": "F8_E4M3", "shape": [4, 8], "data_offsets": [0, 32]}}
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(32))
    vocab = {"a": 0, "b": 1}
    added = [{"id": 2, "content": "</s>"}]
    (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": added}))
    return model


def ggjt(folder: Path) -> Path:
    path = folder / "m.bin"
    path.write_bytes(struct.pack("<II", 0x67676A74, 3) + bytes(40))
    return path


FOREIGN_MODELS: Mapping[str, Callable[[Path], Path]] = {
    "big-endian": big_endian,
    "unknown architecture": unknown_architecture,
    "experts": experts,
    "vocabulary": vocabulary,
    "unknown type": unknown_type,
    "old type": old_type,
    "one part": one_part,
    "cut off": cut_off,
    "safetensors alone": safetensors_alone,
    "unknown family": unknown_family,
    "ggjt": ggjt,
}


def _write(
    folder: Path,
    architecture: str,
    tensors: Mapping[str, np.ndarray],
    *,
    num_experts: int = 0,
    order: GGUFEndian = GGUFEndian.LITTLE,
) -> Path:
    path = folder / "m.gguf"
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    writer.add_block_count(1)
    if num_experts:
        writer.add_expert_count(num_experts)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece.text for piece in tiny_vocabulary()])
    writer.add_token_types([TokenType.NORMAL] * NUM_TOKENS)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _of_type(folder: Path, type_id: int) -> Path:
    path = _write(folder, "llama", {"w": np.ones((4, 8), "f"), "v": np.ones(8, "f")})
    content = bytearray(path.read_bytes())
    at = content.index(b"w\2\0\0\0") + 1 + 4 + 2 * 8  # behind its name and dimensions
    content[at : at + 4] = struct.pack("<I", type_id)
    path.write_bytes(content)
    return path
