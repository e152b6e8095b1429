"""GGUF files that name their special tokens, and leave out optional keys, in all the ways that they can."""

import math
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType as Kind, TokenType

from llama_herd.model.files.model_file import ROPE_NAME, expected_shapes
from tests.model.raw_gguf import array, key, raw_gguf, string, tensor, u32
from tests.model.text.made_folders import engine
from tests.tiny import tiny_config, tiny_vocabulary

Json = dict[str, Any]
ABSENT = "absent"
WORD, BYTE, BEYOND = "word", "byte", 9_999
START, END = "<start_of_turn>", "<end_of_turn>"
#: Ids that a key may name, as the width in which it is written and a value.
IDS = (
    ABSENT,
    (Kind.UINT32, "own"),
    (Kind.UINT32, BEYOND),
    (Kind.UINT32, WORD),
    (Kind.UINT32, BYTE),
    (Kind.UINT64, "own"),
)

#: Every way, by what it is about.
AXES: Mapping[str, tuple[Any, ...]] = {
    "kind": ("llama", "llama", "gpt2"),
    "bos": IDS,
    "eos": IDS,
    "eot": (ABSENT, ABSENT, (Kind.UINT32, "own"), (Kind.UINT32, BEYOND)),
    "unknown": (ABSENT, (Kind.UINT32, "own"), (Kind.UINT32, BEYOND)),
    "padding": (ABSENT, (Kind.UINT32, 0), (Kind.UINT32, BEYOND)),
    "turns": (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.NORMAL, TokenType.UNUSED, 0, 7),
    "types": ("there", "there", ABSENT),
    "scores": ("there", "there", "infinite", ABSENT),
    "empty": (0, 0, 1, 2),
    "add_bos_token": (ABSENT, True, False),
    "add_eos_token": (ABSENT, True, False),
    "heads": ("one number", "a number a layer"),
    "more": ("nothing", "factor 0", "logits 0", "logits 1", "name", "behind"),
}
_WIDTHS = {Kind.UINT32: "<I", Kind.UINT64: "<Q"}


def draw_gguf(rng: random.Random) -> Json:
    """One value of each axis."""
    return {name: rng.choice(values) for name, values in AXES.items()}


def write_gguf(path: Path, choice: Json) -> Path:
    """Write what a choice says: a model of one layer, whose weights are zeros."""
    tokens, types, scores = _vocabulary(choice)
    config = tiny_config(
        vocab_size=len(tokens), hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=2, ffn_size=16
    )
    keys = [*_shape_keys(config, choice), *_token_keys(choice, tokens, types, scores)]
    entries, data = [], b""
    for name, shape in expected_shapes(config).items():
        if name != ROPE_NAME:
            entries.append(tensor(name, tuple(reversed(shape)), offset=len(data)))
            data += bytes(-(-4 * int(np.prod(shape)) // 32) * 32)
    behind = bytes(4_096) if choice["more"] == "behind" else b""
    path.write_bytes(raw_gguf(*keys, tensors=tuple(entries), data=data + behind))
    return path


def _vocabulary(choice: Json) -> tuple[list[str], list[int], list[float]]:
    """Tokens, their types and scores, the special ones as Llama 2 and Llama 3 have them."""
    if choice["kind"] == "llama":
        pieces = tiny_vocabulary()
        tokens, types = [piece.text for piece in pieces], [int(piece.type) for piece in pieces]
        scores = [piece.score for piece in pieces]
    else:
        tokens = [*engine()["model"]["vocab"], "<unk>", "<s>", "</s>"]
        types = [int(TokenType.NORMAL)] * (len(tokens) - 3) + [int(TokenType.CONTROL)] * 3
        scores = [0.0] * len(tokens)
    added = [START, END, *[""] * choice["empty"]]
    kinds = [int(choice["turns"])] * 2 + [int(TokenType.NORMAL)] * choice["empty"]
    score = -math.inf if choice["scores"] == "infinite" else -1_000.0
    return tokens + added, types + kinds, scores + [score] * len(added)


def _shape_keys(config: Any, choice: Json) -> list[bytes]:
    heads = key("llama.attention.head_count_kv", Kind.UINT32, u32(2))
    if choice["heads"] != "one number":
        heads = array("llama.attention.head_count_kv", Kind.UINT32, 1, u32(2))
    more = {
        "factor 0": [key("llama.rope.scaling.factor", Kind.FLOAT32, struct.pack("<f", 0))],
        "logits 0": [key("llama.logit_scale", Kind.FLOAT32, struct.pack("<f", 0))],
        "logits 1": [key("llama.logit_scale", Kind.FLOAT32, struct.pack("<f", 1))],
        "name": [key("general.name", Kind.STRING, string(b"Caf\xe9"))],
    }
    numbers = {
        "context_length": 512,
        "embedding_length": 16,
        "block_count": 1,
        "feed_forward_length": 16,
        "attention.head_count": 2,
        "rope.dimension_count": 8,
    }
    return [
        key("general.architecture", Kind.STRING, string("llama")),
        *(key(f"llama.{name}", Kind.UINT32, u32(number)) for name, number in numbers.items()),
        key("llama.attention.layer_norm_rms_epsilon", Kind.FLOAT32, struct.pack("<f", 1e-6)),
        heads,
        *more.get(choice["more"], []),
    ]


def _token_keys(choice: Json, tokens: list[str], types: list[int], scores: list[float]) -> list[bytes]:
    own = {"bos": tokens.index("<s>"), "eos": tokens.index("</s>"), "eot": tokens.index(END)}
    own["unknown"] = tokens.index("<unk>")
    word = tokens.index("a")
    byte = tokens.index("<0x0A>") if choice["kind"] == "llama" else word
    keys = [
        key("tokenizer.ggml.model", Kind.STRING, string(choice["kind"])),
        array("tokenizer.ggml.tokens", Kind.STRING, len(tokens), b"".join(map(string, tokens))),
    ]
    if choice["kind"] == "gpt2":
        merges = [" ".join(pair) for pair in engine()["model"]["merges"]]
        keys.append(array("tokenizer.ggml.merges", Kind.STRING, len(merges), b"".join(map(string, merges))))
        keys.append(key("tokenizer.ggml.pre", Kind.STRING, string("qwen2")))
    if choice["types"] != ABSENT:
        raw = np.array(types, "<i4").tobytes()
        keys.append(array("tokenizer.ggml.token_type", Kind.INT32, len(tokens), raw))
    if choice["scores"] != ABSENT:
        raw = np.array(scores, "<f4").tobytes()
        keys.append(array("tokenizer.ggml.scores", Kind.FLOAT32, len(tokens), raw))
    for name in ("bos", "eos", "eot", "unknown", "padding"):
        if choice[name] != ABSENT:
            width, value = choice[name]
            token_id = {"own": own.get(name, 0), WORD: word, BYTE: byte}.get(value, value)
            keys.append(key(f"tokenizer.ggml.{name}_token_id", width, struct.pack(_WIDTHS[width], token_id)))
    for name in ("add_bos_token", "add_eos_token"):
        if choice[name] != ABSENT:
            keys.append(key(f"tokenizer.ggml.{name}", Kind.BOOL, bytes([choice[name]])))
    return keys
