"""The shape of a Llama, as its file states it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from llama_herd.model.metadata import Metadata
from llama_herd.model.quoted import quoted

MAX_VOCAB = 1 << 20
MAX_HIDDEN = 65_536
MAX_LAYERS = 512
MAX_HEADS = 1_024
MAX_HEAD_DIM = 1_024
MAX_FFN = 1 << 20
MAX_CONTEXT = 1 << 22
MAX_ROPE_BASE = 1e12
MAX_EXPERTS = 65_536

DEFAULT_ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class LlamaConfig:
    """What the mathematics needs to know of a model; all of it comes from the model's file."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    context_length: int  # tokens
    rms_eps: float
    rope_base: float
    rope_dim: int  # values of a head that RoPE turns: all of them

    @classmethod
    def llama2_7b(cls) -> Self:
        """The shape of Llama-2-7B (https://arxiv.org/abs/2307.09288)."""
        return cls(
            vocab_size=32_000,
            hidden_size=4_096,
            num_layers=32,
            num_heads=32,
            num_kv_heads=32,
            head_dim=128,
            ffn_size=11_008,
            context_length=4_096,
            rms_eps=1e-5,
            rope_base=DEFAULT_ROPE_BASE,
            rope_dim=128,
        )

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """Read the metadata of a GGUF file. Raises ModelFileError, which names the key."""
        _require(metadata, "general.architecture", "llama")
        _refuse_gguf_variants(metadata)
        hidden_size = metadata.integer("llama.embedding_length", 1, MAX_HIDDEN)
        num_heads = metadata.integer("llama.attention.head_count", 1, MAX_HEADS)
        head_dim = _head_dim(metadata, "llama.attention.key_length", hidden_size, num_heads)
        config = cls(
            vocab_size=_gguf_vocab_size(metadata),
            hidden_size=hidden_size,
            num_layers=metadata.integer("llama.block_count", 1, MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=metadata.integer("llama.attention.head_count_kv", 1, MAX_HEADS, num_heads),
            head_dim=head_dim,
            ffn_size=metadata.integer("llama.feed_forward_length", 1, MAX_FFN),
            context_length=metadata.integer("llama.context_length", 1, MAX_CONTEXT),
            rms_eps=metadata.number("llama.attention.layer_norm_rms_epsilon", 0, 1),
            rope_base=metadata.number("llama.rope.freq_base", 0, MAX_ROPE_BASE, DEFAULT_ROPE_BASE),
            rope_dim=metadata.integer("llama.rope.dimension_count", 1, MAX_HEAD_DIM, head_dim),
        )
        value_dim = metadata.integer("llama.attention.value_length", 1, MAX_HEAD_DIM, head_dim)
        if value_dim != head_dim:
            raise metadata.error("llama.attention.value_length", f"is {value_dim}, keys have {head_dim}")
        config._check(metadata, kv_key="llama.attention.head_count_kv", rope_key="llama.rope.dimension_count")
        return config

    @classmethod
    def from_json(cls, values: Mapping[str, object], source: str = "config.json") -> Self:
        """Read a Hugging Face config.json (an absent and a null key are the same).

        Raises ModelFileError, which names `source` and the key.
        """
        config_json = Metadata({key: value for key, value in values.items() if value is not None}, source)
        _require(config_json, "model_type", "llama")
        _require(config_json, "hidden_act", "silu", default="silu")
        for key in ("attention_bias", "mlp_bias"):
            if config_json.flag(key, False):
                raise config_json.error(key, "is true, biases are not supported")
        hidden_size = config_json.integer("hidden_size", 1, MAX_HIDDEN)
        num_heads = config_json.integer("num_attention_heads", 1, MAX_HEADS)
        head_dim = _head_dim(config_json, "head_dim", hidden_size, num_heads)
        config = cls(
            vocab_size=config_json.integer("vocab_size", 1, MAX_VOCAB),
            hidden_size=hidden_size,
            num_layers=config_json.integer("num_hidden_layers", 1, MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=config_json.integer("num_key_value_heads", 1, MAX_HEADS, num_heads),
            head_dim=head_dim,
            ffn_size=config_json.integer("intermediate_size", 1, MAX_FFN),
            context_length=config_json.integer("max_position_embeddings", 1, MAX_CONTEXT),
            rms_eps=config_json.number("rms_norm_eps", 0, 1),
            rope_base=_json_rope_base(config_json),
            rope_dim=head_dim,
        )
        config._check(config_json, kv_key="num_key_value_heads", rope_key="head_dim")
        return config

    def _check(self, metadata: Metadata, kv_key: str, rope_key: str) -> None:
        """Raise ModelFileError unless the values fit each other."""
        if self.num_heads % self.num_kv_heads:
            raise metadata.error(kv_key, f"is {self.num_kv_heads}, it must divide {self.num_heads} heads")
        if self.rope_dim != self.head_dim or self.rope_dim % 2:
            raise metadata.error(
                rope_key, f"is {self.rope_dim}, a head has {self.head_dim}: RoPE turns all, in pairs"
            )


def _require(metadata: Metadata, key: str, needed: str, default: str | None = None) -> None:
    value = metadata.text(key, default)
    if value != needed:
        raise metadata.error(key, f"is {quoted(value)}, only {quoted(needed)} is supported")


def _head_dim(metadata: Metadata, key: str, hidden_size: int, num_heads: int) -> int:
    if key not in metadata and hidden_size % num_heads:
        raise metadata.error(
            key, f"is missing, and {num_heads} heads do not divide a hidden size of {hidden_size}"
        )
    return metadata.integer(key, 1, MAX_HEAD_DIM, hidden_size // num_heads)


def _gguf_vocab_size(metadata: Metadata) -> int:
    """The tokens count; `llama.vocab_size` stands in for them in a file without a tokenizer."""
    key = "tokenizer.ggml.tokens"
    if key not in metadata:
        return metadata.integer("llama.vocab_size", 1, MAX_VOCAB)
    vocab_size = len(metadata.strings(key))
    if not 1 <= vocab_size <= MAX_VOCAB:
        raise metadata.error(key, f"has {vocab_size} elements, allowed are 1 to {MAX_VOCAB}")
    return vocab_size


def _refuse_gguf_variants(metadata: Metadata) -> None:
    """Refuse by name what would change the mathematics and is not built."""
    num_experts = metadata.integer("llama.expert_count", 0, MAX_EXPERTS, 0)
    if num_experts:
        raise metadata.error("llama.expert_count", f"is {num_experts}, mixtures of experts are not supported")
    if metadata.text("llama.rope.scaling.type", "") == "none":
        return
    for key in metadata:
        if key.startswith(("llama.rope.scaling.", "llama.rope.scale_linear")):
            raise metadata.error(quoted(key), f"is {quoted(metadata[key])}, RoPE scaling is not supported")


def _json_rope_base(config_json: Metadata) -> float:
    """RoPE's base, at the top level or within `rope_parameters` (transformers 5); scaling is refused."""
    base = config_json.number("rope_theta", 0, MAX_ROPE_BASE, DEFAULT_ROPE_BASE)
    for key in ("rope_scaling", "rope_parameters"):
        if key not in config_json:
            continue
        rope = config_json.nested(key)
        kind = rope.text("rope_type", rope.text("type", "default"))
        if kind != "default":
            raise rope.error("rope_type", f"is {quoted(kind)}, RoPE scaling is not supported")
        base = rope.number("rope_theta", 0, MAX_ROPE_BASE, base)
    return base
