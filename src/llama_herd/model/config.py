"""The shape of a model, as its file states it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from llama_herd.model.reading.metadata import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_ROPE_BASE,
    MAX_VOCAB,
    Metadata,
    NotedMetadata,
    quoted,
)
from llama_herd.model.shape.bidirectional import (
    BIDIRECTIONAL,
    OTHER_EMBEDDER,
    is_bidirectional,
    refuse_other_heads,
)
from llama_herd.model.shape.families import FAMILIES, LLAMA, Family
from llama_herd.model.shape.gguf_shape import (
    gguf_local_rope_base,
    gguf_scales,
    gguf_vocab_size,
    gguf_windows,
    plain_gguf,
    refuse_unread_gguf_keys,
)
from llama_herd.model.shape.json_shape import (
    json_biased,
    json_rope,
    json_scales,
    json_windows,
    refuse_unread_json_keys,
    with_defaults,
)
from llama_herd.model.shape.rope_scaling import UNSCALED, Pairs, RopeScaling, gguf_scaling

MOE, MOE_HELP = "mixtures of experts are not supported", "Take a dense model of the same family."


@dataclass(frozen=True)
class LlamaConfig:
    """A model's configuration: all that the mathematics needs to know, read from the model's file.

    What has a default is as in Llama 2 unless the file, or its family, says otherwise.
    """

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
    family: Family = LLAMA
    rope_scaling: RopeScaling = UNSCALED
    local_rope_base: float = 0.0  # of layers with a window, unscaled; 0: they turn like the others
    biased: tuple[str, ...] = ()  # starts of names of matrices that have biases besides the family's
    windows: tuple[int, ...] = ()  # of each layer: tokens that a token sees; 0, or empty: all
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add
    logit_divisor: float = 1.0
    score_cap: float = 0.0  # c * tanh(score / c); 0: none
    logit_cap: float = 0.0

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """Read the metadata of a GGUF file. Raises ModelFileError, which names the key.

        A key of its architecture that is not known to change nothing, and is not read, is refused.
        """
        family = _family(metadata, "general.architecture", lambda family: family.architecture)
        a = family.architecture
        noted = NotedMetadata(plain_gguf(metadata, a), metadata.source)
        if noted.integer(f"{a}.expert_count", 0, MAX_EXPERTS, 0):
            raise noted.error(f"{a}.expert_count", f"is {noted[f'{a}.expert_count']}, {MOE}", MOE_HELP)
        hidden_size = noted.integer(f"{a}.embedding_length", 1, MAX_HIDDEN)
        num_heads = noted.integer(f"{a}.attention.head_count", 1, MAX_HEADS)
        num_layers = noted.integer(f"{a}.block_count", 1, MAX_LAYERS)
        head_dim = _head_dim(noted, f"{a}.attention.key_length", hidden_size, num_heads)
        context_length = noted.integer(f"{a}.context_length", 1, MAX_CONTEXT)
        rope_base = noted.number(f"{a}.rope.freq_base", 1, MAX_ROPE_BASE, family.rope_base)
        scales = gguf_scales(noted, family)
        if family.query_scalar and num_layers == family.wide_query_layers:
            scales["attention_scale"] = (hidden_size / num_heads) ** -0.5
        config = cls(
            vocab_size=gguf_vocab_size(noted, a),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=noted.integer(f"{a}.attention.head_count_kv", 1, MAX_HEADS, num_heads),
            head_dim=head_dim,
            ffn_size=noted.integer(f"{a}.feed_forward_length", 1, MAX_FFN),
            context_length=context_length,
            rms_eps=noted.number(f"{a}.attention.layer_norm_rms_epsilon", 0, 1),
            rope_base=rope_base,
            rope_dim=noted.integer(f"{a}.rope.dimension_count", 1, MAX_HEAD_DIM, head_dim),
            family=family,
            rope_scaling=gguf_scaling(noted, f"{a}.rope", Pairs(head_dim, rope_base), context_length),
            local_rope_base=gguf_local_rope_base(noted, family),
            biased=(),  # no key states others: those that the file has count
            windows=gguf_windows(noted, family, num_layers),
            embedding_scale=scales.pop("embedding_scale", _embedding_scale(family, hidden_size)),
            **scales,
        )
        value_dim = noted.integer(f"{a}.attention.value_length", 1, MAX_HEAD_DIM, head_dim)
        if value_dim != head_dim:
            raise noted.error(f"{a}.attention.value_length", f"is {value_dim}, keys have {head_dim}")
        config._check(noted, f"{a}.attention.head_count_kv", f"{a}.rope.dimension_count")
        refuse_unread_gguf_keys(noted, a)
        return config

    @classmethod
    def from_json(cls, values: Mapping[str, object], source: str = "config.json") -> Self:
        """Read a Hugging Face config.json, in which null is not always as good as absent.

        Raises ModelFileError, which names `source` and the key.
        """
        config_json = Metadata(values, source)
        refuse_other_heads(config_json.without_nulls({"is_causal"}))
        family = _family(config_json, "model_type", lambda family: family.model_type)
        noted = NotedMetadata(with_defaults(config_json, family), source)
        noted.require(family.activation_key, family.activation)
        hidden_size = noted.integer("hidden_size", 1, MAX_HIDDEN)
        num_heads = noted.integer("num_attention_heads", 1, MAX_HEADS)
        num_layers = noted.integer("num_hidden_layers", 1, MAX_LAYERS)
        head_dim = _head_dim(noted, "head_dim", hidden_size, num_heads)
        context_length = noted.integer("max_position_embeddings", 1, MAX_CONTEXT)
        rope_base, scaling, local_base = json_rope(noted, family, head_dim, context_length)
        scales = json_scales(noted, family)
        config = cls(
            vocab_size=noted.integer("vocab_size", 1, MAX_VOCAB),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=noted.integer("num_key_value_heads", 1, MAX_HEADS, num_heads),
            head_dim=head_dim,
            ffn_size=noted.integer("intermediate_size", 1, MAX_FFN),
            context_length=context_length,
            rms_eps=noted.number("rms_norm_eps", 0, 1),
            rope_base=rope_base,
            rope_dim=head_dim,
            family=family,
            rope_scaling=scaling,
            local_rope_base=local_base,
            biased=json_biased(noted, family),
            windows=json_windows(noted, family, num_layers),
            embedding_scale=scales.pop("embedding_scale", _embedding_scale(family, hidden_size)),
            **scales,
        )
        config._check(noted, "num_key_value_heads", "head_dim")
        refuse_unread_json_keys(noted)
        return config

    def window(self, layer: int) -> int:
        """The number of tokens that a token of this layer sees, itself one of them; 0: all."""
        return self.windows[layer] if self.windows else 0

    def _check(self, metadata: Metadata, kv_key: str, rope_key: str) -> None:
        """Raise ModelFileError unless the values fit each other."""
        if self.num_heads % self.num_kv_heads:
            raise metadata.error(kv_key, f"is {self.num_kv_heads}, it must divide {self.num_heads} heads")
        if self.rope_dim != self.head_dim or self.rope_dim % 2:
            raise metadata.error(
                rope_key,
                f"is {self.rope_dim}, but RoPE must turn all {self.head_dim} numbers of a head, in pairs",
            )


def _family(metadata: Metadata, key: str, known_as: Callable[[Family], str]) -> Family:
    """The first family that is known by what `key` says. Raises ModelFileError for another."""
    named = metadata.text(key)
    for family in FAMILIES:
        if known_as(family) == named:
            return family
    if "moe" in named or named == "mixtral":
        raise metadata.error(key, f"is {quoted(named)}, {MOE}", MOE_HELP)
    if is_bidirectional(named):
        raise metadata.error(key, f"is {quoted(named)}: {BIDIRECTIONAL}", OTHER_EMBEDDER)
    if "text_config" in metadata:
        raise metadata.error(
            key, f"is {quoted(named)}, which sees more than text", "Take its text model as GGUF."
        )
    known = ", ".join(dict.fromkeys(map(known_as, FAMILIES)))
    raise metadata.error(key, f"is {quoted(named)}, supported are {known}", "Take a model of one of these.")


def _head_dim(metadata: Metadata, key: str, hidden_size: int, num_heads: int) -> int:
    if key not in metadata and hidden_size % num_heads:
        raise metadata.error(
            key, f"is missing, and {num_heads} heads do not divide a hidden size of {hidden_size}"
        )
    return metadata.integer(key, 1, MAX_HEAD_DIM, hidden_size // num_heads)


def _embedding_scale(family: Family, hidden_size: int) -> float:
    return math.sqrt(hidden_size) if family.scaled_embedding else 1.0
