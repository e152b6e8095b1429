"""Tiny Llamas: GGUF files of random weights, made in milliseconds, and transformers' model of each.

    path = write_tiny_gguf(tmp_path / "tiny.gguf", type="Q8_0")
    logits = oracle(path)(torch.tensor([[1, 2, 3]])).logits

Nothing here imports transformers before `oracle` is called.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as GGMLType, TokenType
from torch import Tensor

from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.llama2 import Llama

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

WORDS = ("the", "and", "a", "to", "herd", "llama", "token", "queue", "is", "in", "on")
LETTERS = "etaoinshrdlucmfwygpbvkxqjz"
UNK_ID, BOS_ID, EOS_ID = 0, 1, 2
#: Changes to the shape that give rows for blocks of any type.
WIDE: dict[str, Any] = {"hidden_size": 256, "ffn_size": 256}


@dataclass(frozen=True)
class Piece:
    """One token of a SentencePiece vocabulary."""

    text: str
    score: float
    type: TokenType


def tiny_vocabulary() -> list[Piece]:
    """SentencePiece's BPE with byte fallback: specials, 256 bytes, every prefix of a few words, letters."""
    pieces = [Piece("<unk>", 0.0, TokenType.UNKNOWN)]
    pieces += [Piece(text, 0.0, TokenType.CONTROL) for text in ("<s>", "</s>")]
    pieces += [Piece(f"<0x{byte:02X}>", 0.0, TokenType.BYTE) for byte in range(256)]
    merged = [f"▁{word}"[:end] for word in WORDS for end in range(2, len(word) + 2)]
    texts = [*dict.fromkeys(merged), "▁", *LETTERS]  # earlier merges first, letters last
    return pieces + [Piece(text, float(-rank), TokenType.NORMAL) for rank, text in enumerate(texts)]


def tiny_config(**changes: Any) -> LlamaConfig:
    """The default shape; `changes` are fields of LlamaConfig."""
    shape: dict[str, Any] = {
        "vocab_size": len(tiny_vocabulary()),
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_size": 128,
        "context_length": 512,
        "rms_eps": 1e-5,
        "rope_base": 10_000.0,
        **changes,
    }
    shape.setdefault("head_dim", shape["hidden_size"] // shape["num_heads"])
    return LlamaConfig(rope_dim=shape["head_dim"], **shape)


def write_tiny_gguf(
    path: Path,
    *,
    type: str = "F32",
    seed: int = 0,
    tied: bool = False,
    permute: bool = True,
    rope_factors: bool = False,
    eos: bool = True,
    chat_template: str | list[dict[str, str]] | None = None,
    part_tensors: int = 0,
    sampling: Mapping[str, float] | None = None,
    **config_changes: Any,
) -> Path:
    """Write a Llama with random weights. Matrices are stored as `type`, norms as F32.

    Several types, such as "Q4_K Q6_K", are used in turn. See `stored_blocks` for those that are only read.

    `tied` leaves output.weight out. `permute=False` breaks GGUF's convention for the rows of Q and K.
    `rope_factors` adds a rope_freqs.weight as files of Llama 3.1 have it. `eos=False` names no end of
    sequence, so that a generation is as long as it may be. `part_tensors` splits the file into parts of so
    many tensors each: tiny-00001-of-00003.gguf, and no tiny.gguf. `sampling` is what it
    recommends, by GGUF's names.
    """
    config = tiny_config(**config_changes)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=part_tensors)
    _add_config(writer, config)
    add_tokenizer(writer, tiny_vocabulary(), eos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, value in (sampling or {}).items():
        writer.add_float32(f"general.sampling.{name}", value)
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if permute else {}
    types = cycle(type.split())
    for name, weight in random_weights(config, seed, tied).items():
        rows = permute_rows(weight, heads.get(_kind(name), 0))
        _add_tensor(writer, name, rows.numpy(), GGMLType[next(types)])
    if rope_factors:
        _add_tensor(writer, "rope_freqs.weight", np.ones(config.rope_dim // 2, np.float32), GGMLType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load_tiny(path: Path, dtype: torch.dtype = torch.float32) -> Llama:
    """Our model of a tiny file, on the CPU."""
    with GGUFModel.open(path) as file:
        return Llama.load(file, "cpu", dtype)


def random_weights(config: LlamaConfig, seed: int, tied: bool) -> dict[str, Tensor]:
    """Weights by GGUF name, rows of Q and K in transformers' order.

    Their spread keeps every layer's part in the sum of about equal size, and logits below about 2.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(num_rows: int, num_columns: int, gain: float = 1.5) -> Tensor:
        return torch.randn(num_rows, num_columns, generator=generator) * (gain / math.sqrt(num_columns))

    def norm() -> Tensor:
        return 1 + 0.1 * torch.randn(config.hidden_size, generator=generator)

    hidden, ffn = config.hidden_size, config.ffn_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    weights = {"token_embd.weight": matrix(config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        layer_weights = {
            "attn_norm": norm(),
            "attn_q": matrix(q_rows, hidden),
            "attn_k": matrix(kv_rows, hidden),
            "attn_v": matrix(kv_rows, hidden),
            "attn_output": matrix(hidden, q_rows),
            "ffn_norm": norm(),
            "ffn_gate": matrix(ffn, hidden),
            "ffn_up": matrix(ffn, hidden),
            "ffn_down": matrix(hidden, ffn),
        }
        weights |= {f"blk.{layer}.{name}.weight": weight for name, weight in layer_weights.items()}
    weights["output_norm.weight"] = norm()
    if not tied:
        weights["output.weight"] = matrix(config.vocab_size, hidden, gain=0.5)
    return weights


def permute_rows(weight: Tensor, num_heads: int) -> Tensor:
    """GGUF's order: row i and row i + D/2 of each head side by side. No heads: as it is."""
    if num_heads == 0:
        return weight
    return weight.view(num_heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def unpermute_rows(weight: Tensor, num_heads: int) -> Tensor:
    """The inverse of `permute_rows`, told by the formula and not by our loader."""
    if num_heads == 0:
        return weight
    return weight.view(num_heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def oracle(path: Path, **config_changes: Any) -> "LlamaForCausalLM":
    """transformers' model of a tiny file, by way of the gguf package alone: none of our loading code."""
    from transformers import LlamaConfig as TransformersConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    config = tiny_config(**config_changes)
    stored = stored_weights(path)
    described = TransformersConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context_length,
        rms_norm_eps=config.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings="output.weight" not in stored,
        attn_implementation="eager",
        pad_token_id=UNK_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    with no_init_weights():
        model = LlamaForCausalLM(described)
    state = {_transformers_name(name): weight for name, weight in stored.items()}
    model.load_state_dict(state, strict="output.weight" in stored)
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def oracle_logits(path: Path, ids: list[int], **shape: Any) -> Tensor:
    """What transformers gives after the last of `ids`: (V,)."""
    logits: Tensor = oracle(path, **shape)(torch.tensor([ids])).logits[0, -1]
    return logits


def stored_weights(path: Path) -> dict[str, Tensor]:
    """The float32 values in a tiny file by GGUF name, rows of Q and K back in transformers' order."""
    reader = _reader(path)
    heads = {
        "attn_q": int(reader.get_field("llama.attention.head_count").contents()),
        "attn_k": int(reader.get_field("llama.attention.head_count_kv").contents()),
    }
    weights = {}
    for tensor in reader.tensors:
        as_one_row = gguf.quants.dequantize(tensor.data.reshape(1, -1), tensor.tensor_type)
        values = torch.tensor(as_one_row.reshape(tuple(tensor.shape)[::-1]))
        weights[tensor.name] = unpermute_rows(values, heads.get(_kind(tensor.name), 0))
    return weights


def _reader(path: Path) -> gguf.GGUFReader:
    """Of bytes that are read: numpy's mapped files make each of its many small slices slow."""
    with mock.patch("numpy.memmap", lambda path, mode: np.fromfile(path, np.uint8)):
        return gguf.GGUFReader(path)


def _kind(name: str) -> str:
    """attn_q of blk.0.attn_q.weight."""
    return name.split(".")[-2]


def _transformers_name(name: str) -> str:
    parts = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    *prefix, kind, _ = name.split(".")
    return ".".join((*(["model.layers", prefix[1]] if prefix else []), parts[kind], "weight"))


def _add_config(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.rope_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_vocab_size(config.vocab_size)


def add_tokenizer(writer: gguf.GGUFWriter, vocabulary: list[Piece], eos: bool) -> None:
    writer.add_tokenizer_model("llama")
    if not eos:  # an end by name ends a generation, and so does what has this id, unless it is text
        vocabulary = [*vocabulary]
        vocabulary[EOS_ID] = Piece("<none>", 0.0, TokenType.USER_DEFINED)
    writer.add_token_list([piece.text for piece in vocabulary])
    writer.add_token_scores([piece.score for piece in vocabulary])
    writer.add_token_types([piece.type for piece in vocabulary])
    writer.add_unk_token_id(UNK_ID)
    writer.add_bos_token_id(BOS_ID)
    if eos:
        writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, type: GGMLType) -> None:
    if values.ndim == 1:
        type = GGMLType.F32
    writer.add_tensor(name, stored_blocks(values, type), raw_dtype=type)
