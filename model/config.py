"""The shape of a model, as its file states it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from llama_herd.model.families import FAMILIES, LLAMA, Family
from llama_herd.model.metadata import Metadata, NotedMetadata
from llama_herd.model.quoted import quoted
from llama_herd.model.rope_scaling import UNSCALED, Pairs, RopeScaling, gguf_scaling, json_scaling

MAX_VOCAB = 1 << 20
MAX_HIDDEN = 65_536
MAX_LAYERS = 512
MAX_HEADS = 1_024
MAX_HEAD_DIM = 1_024
MAX_FFN = 1 << 20
MAX_CONTEXT = 1 << 22
MAX_ROPE_BASE = 1e12
MAX_SCALE = 1e6

#: Keys of a GGUF file after its architecture that change no result, whatever they are.
HARMLESS_KEYS = frozenset({"vocab_size", "tensor_data_layout", "expert_used_count", "rope.scaling.finetuned"})
#: Such keys as long as they have this value.
NEUTRAL_VALUES: Mapping[str, object] = {
    "expert_count": 0,
    "attention.causal": True,
    "use_parallel_residual": True,  # written for all, read for GPT-NeoX
    "pooling_type": 0,
}
#: Keys of a config.json that change the result in one family or another.
CHANGING_JSON_KEYS = frozenset(
    {
        "attention_bias",
        "attention_multiplier",
        "attn_logit_softcapping",
        "embedding_multiplier",
        "final_logit_softcapping",
        "logit_scale",
        "logits_scaling",
        "mlp_bias",
        "n_routed_experts",
        "num_experts",
        "num_local_experts",
        "partial_rotary_factor",
        "quantization_config",
        "query_pre_attn_scalar",
        "residual_multiplier",
        "sliding_window",
        "use_bidirectional_attention",
        "use_qk_norm",
    }
)

OTHER_MODEL = "Take another model."
MOE, MOE_HELP = "mixtures of experts are not supported", "Take a dense model of the same family."


@dataclass(frozen=True)
class LlamaConfig:
    """What the mathematics needs to know of a model; all of it comes from the model's file.

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
    windows: tuple[int, ...] = ()  # of each layer: tokens that a token sees; 0, or empty: all
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add
    logit_divisor: float = 1.0
    score_cap: float = 0.0  # c * tanh(score / c); 0: none
    logit_cap: float = 0.0

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
            rope_base=LLAMA.rope_base,
            rope_dim=128,
        )

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """Read the metadata of a GGUF file. Raises ModelFileError, which names the key.

        A key of its architecture that is not known to change nothing, and is not read, is refused.
        """
        noted = NotedMetadata(metadata, metadata.source)
        family = _family(noted, "general.architecture", lambda family: family.architecture)
        a = family.architecture
        if noted.integer(f"{a}.expert_count", 0, 1 << 16, 0):
            raise noted.error(f"{a}.expert_count", f"is {noted[f'{a}.expert_count']}, {MOE}", MOE_HELP)
        hidden_size = noted.integer(f"{a}.embedding_length", 1, MAX_HIDDEN)
        num_heads = noted.integer(f"{a}.attention.head_count", 1, MAX_HEADS)
        num_layers = noted.integer(f"{a}.block_count", 1, MAX_LAYERS)
        head_dim = _head_dim(noted, f"{a}.attention.key_length", hidden_size, num_heads)
        context_length = noted.integer(f"{a}.context_length", 1, MAX_CONTEXT)
        rope_base = noted.number(f"{a}.rope.freq_base", 1, MAX_ROPE_BASE, family.rope_base)
        scales = _gguf_scales(noted, family)
        if family.query_scalar and num_layers == family.wide_query_layers:
            scales["attention_scale"] = (hidden_size // num_heads) ** -0.5
        config = cls(
            vocab_size=_gguf_vocab_size(noted, a),
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
            local_rope_base=_gguf_local_rope_base(noted, family),
            windows=_gguf_windows(noted, family, num_layers),
            embedding_scale=scales.pop("embedding_scale", _embedding_scale(family, hidden_size)),
            **scales,
        )
        value_dim = noted.integer(f"{a}.attention.value_length", 1, MAX_HEAD_DIM, head_dim)
        if value_dim != head_dim:
            raise noted.error(f"{a}.attention.value_length", f"is {value_dim}, keys have {head_dim}")
        config._check(noted, f"{a}.attention.head_count_kv", f"{a}.rope.dimension_count")
        _refuse_unread_gguf(noted, a)
        return config

    @classmethod
    def from_json(cls, values: Mapping[str, object], source: str = "config.json") -> Self:
        """Read a Hugging Face config.json (a null key is as good as absent).

        Raises ModelFileError, which names `source` and the key.
        """
        family = _family(Metadata(values, source), "model_type", lambda family: family.model_type)
        filled = {**family.defaults, **values}
        noted = NotedMetadata({key: value for key, value in filled.items() if value is not None}, source)
        for key in ("hidden_act", "hidden_activation"):
            _require(noted, key, family.activation)
        hidden_size = noted.integer("hidden_size", 1, MAX_HIDDEN)
        num_heads = noted.integer("num_attention_heads", 1, MAX_HEADS)
        num_layers = noted.integer("num_hidden_layers", 1, MAX_LAYERS)
        head_dim = _head_dim(noted, "head_dim", hidden_size, num_heads)
        context_length = noted.integer("max_position_embeddings", 1, MAX_CONTEXT)
        rope = _json_rope(noted, family, head_dim, context_length)
        scales = _json_scales(noted, family)
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
            rope_base=rope.base,
            rope_dim=head_dim,
            family=family,
            rope_scaling=rope.scaling,
            local_rope_base=rope.local_base,
            windows=_json_windows(noted, family, num_layers),
            embedding_scale=scales.pop("embedding_scale", _embedding_scale(family, hidden_size)),
            **scales,
        )
        config._check(noted, "num_key_value_heads", "head_dim")
        _refuse_unread_json(noted)
        return config

    def window(self, layer: int) -> int:
        """How many tokens a token of this layer sees, itself one of them; 0: all."""
        return self.windows[layer] if self.windows else 0

    def _check(self, metadata: Metadata, kv_key: str, rope_key: str) -> None:
        """Raise ModelFileError unless the values fit each other."""
        if self.num_heads % self.num_kv_heads:
            raise metadata.error(kv_key, f"is {self.num_kv_heads}, it must divide {self.num_heads} heads")
        if self.rope_dim != self.head_dim or self.rope_dim % 2:
            raise metadata.error(
                rope_key, f"is {self.rope_dim}, a head has {self.head_dim}: RoPE turns all, in pairs"
            )


def _family(metadata: Metadata, key: str, known_as: Callable[[Family], str]) -> Family:
    """The first family that is known by what `key` says. Raises ModelFileError for another."""
    named = metadata.text(key)
    for family in FAMILIES:
        if known_as(family) == named:
            return family
    if "moe" in named or named == "mixtral":
        raise metadata.error(key, f"is {quoted(named)}, {MOE}", MOE_HELP)
    if "text_config" in metadata:
        raise metadata.error(
            key, f"is {quoted(named)}, which sees more than text", "Take its text model as GGUF."
        )
    known = ", ".join(dict.fromkeys(map(known_as, FAMILIES)))
    raise metadata.error(key, f"is {quoted(named)}, supported are {known}", "Take a model of one of these.")


def _require(metadata: Metadata, key: str, needed: str) -> None:
    value = metadata.text(key, needed)
    if value != needed:
        raise metadata.error(key, f"is {quoted(value)}, only {quoted(needed)} is supported", OTHER_MODEL)


def _head_dim(metadata: Metadata, key: str, hidden_size: int, num_heads: int) -> int:
    if key not in metadata and hidden_size % num_heads:
        raise metadata.error(
            key, f"is missing, and {num_heads} heads do not divide a hidden size of {hidden_size}"
        )
    return metadata.integer(key, 1, MAX_HEAD_DIM, hidden_size // num_heads)


def _embedding_scale(family: Family, hidden_size: int) -> float:
    return math.sqrt(hidden_size) if family.scaled_embedding else 1.0


def _gguf_vocab_size(metadata: Metadata, architecture: str) -> int:
    """The tokens count; `vocab_size` stands in for them in a file without a tokenizer."""
    key = "tokenizer.ggml.tokens"
    if key not in metadata:
        return metadata.integer(f"{architecture}.vocab_size", 1, MAX_VOCAB)
    vocab_size = len(metadata.strings(key))
    if not 1 <= vocab_size <= MAX_VOCAB:
        raise metadata.error(key, f"has {vocab_size} elements, allowed are 1 to {MAX_VOCAB}")
    return vocab_size


def _gguf_local_rope_base(metadata: Metadata, family: Family) -> float:
    if not family.local_rope_base:
        return 0.0
    key = f"{family.architecture}.rope.freq_base_swa"
    return metadata.number(key, 1, MAX_ROPE_BASE, family.local_rope_base)


def _gguf_windows(metadata: Metadata, family: Family, num_layers: int) -> tuple[int, ...]:
    """Each layer's window. A pattern is a period, whose last layer sees all, or a flag for each layer."""
    key = f"{family.architecture}.attention.sliding_window"
    window = metadata.integer(key, 0, MAX_CONTEXT, family.gguf_window)
    pattern = metadata.get(f"{key}_pattern")
    if isinstance(pattern, np.ndarray):
        has_window = metadata.array(f"{key}_pattern", "b", num_layers).tolist()
    else:
        period = metadata.integer(f"{key}_pattern", 0, MAX_LAYERS, family.global_every)
        has_window = _local_layers(period, num_layers)
    return _windows(window, has_window)


def _gguf_scales(metadata: Metadata, family: Family) -> dict[str, float]:
    keys = {}
    if family.multipliers:
        keys = {
            "embedding_scale": "embedding_scale",
            "residual_scale": "residual_scale",
            "attention_scale": "attention.scale",
            "logit_divisor": "logit_scale",
        }
        finetuned = f"{family.architecture}.rope.scaling.finetuned"
        if not metadata.flag(finetuned, True):
            raise metadata.error(finetuned, "is false: this one is without RoPE", OTHER_MODEL)
    if family.score_cap:
        keys["score_cap"] = "attn_logit_softcapping"
    if family.logit_cap:
        keys["logit_cap"] = "final_logit_softcapping"
    return _numbers(metadata, {field: f"{family.architecture}.{key}" for field, key in keys.items()})


def _json_scales(metadata: Metadata, family: Family) -> dict[str, float]:
    keys = {}
    if family.multipliers:
        keys = {
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention_scale": "attention_multiplier",
            "logit_divisor": "logits_scaling",
        }
    if family.score_cap:
        keys["score_cap"] = "attn_logit_softcapping"
    if family.logit_cap:
        keys["logit_cap"] = "final_logit_softcapping"
    scales = _numbers(metadata, keys)
    if family.query_scalar:
        scales["attention_scale"] = metadata.number("query_pre_attn_scalar", 0, MAX_SCALE) ** -0.5
    return scales


def _numbers(metadata: Metadata, keys: Mapping[str, str]) -> dict[str, float]:
    """The numbers by the names of their fields, as far as they are there."""
    return {field: metadata.number(key, 0, MAX_SCALE) for field, key in keys.items() if key in metadata}


class _JsonRope(NamedTuple):
    base: float
    scaling: RopeScaling
    local_base: float


def _json_rope(config_json: Metadata, family: Family, head_dim: int, context_length: int) -> _JsonRope:
    """RoPE at the top level, or within `rope_scaling` or (transformers 5) `rope_parameters`."""
    base = config_json.number("rope_theta", 1, MAX_ROPE_BASE, family.rope_base)
    local_base, scaling = family.local_rope_base, UNSCALED
    if local_base:
        local_base = config_json.number("rope_local_base_freq", 1, MAX_ROPE_BASE, local_base)
    context = config_json.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context_length)
    for key in ("rope_scaling", "rope_parameters"):
        if key not in config_json:
            continue
        rope = _without_nulls(config_json.nested(key))
        if local_base and "sliding_attention" in rope:
            local = _without_nulls(rope.nested("sliding_attention"))
            _require(local, "rope_type", "default")
            local_base = local.number("rope_theta", 1, MAX_ROPE_BASE, local_base)
            rope = _without_nulls(rope.nested("full_attention"))
        base = rope.number("rope_theta", 1, MAX_ROPE_BASE, base)
        if rope.number("partial_rotary_factor", 0, 2, 1.0) != 1:
            raise rope.error("partial_rotary_factor", "is not 1: RoPE must turn all of a head", OTHER_MODEL)
        scaling = json_scaling(rope, Pairs(head_dim, base), context)
    return _JsonRope(base, scaling, local_base)


def _without_nulls(metadata: Metadata) -> Metadata:
    return Metadata({key: value for key, value in metadata.items() if value is not None}, metadata.source)


def _json_windows(config_json: Metadata, family: Family, num_layers: int) -> tuple[int, ...]:
    if not family.window:
        return ()
    window = config_json.integer("sliding_window", 0, MAX_CONTEXT, 0)
    if family.window == "all":
        return _windows(window, [True] * num_layers)
    if "layer_types" in config_json:
        types = config_json.items_of("layer_types", ("sliding_attention", "full_attention"), num_layers)
        has_window = [kind == "sliding_attention" for kind in types]
    elif family.window == "upper":
        first = config_json.integer("max_window_layers", 0, MAX_LAYERS)
        has_window = [layer >= first for layer in range(num_layers)]
    else:
        period = config_json.integer("sliding_window_pattern", 1, MAX_LAYERS, family.global_every)
        has_window = _local_layers(period, num_layers)
    if family.window == "upper" and not config_json.flag("use_sliding_window", False):
        window = 0
    return _windows(window, has_window)


def _local_layers(period: int, num_layers: int) -> list[bool]:
    """Which layers have a window when every `period`th has none; period 0: all."""
    return [not period or (layer + 1) % period != 0 for layer in range(num_layers)]


def _windows(window: int, has_window: Sequence[bool]) -> tuple[int, ...]:
    return tuple(window if has else 0 for has in has_window) if window and any(has_window) else ()


def _refuse_unread_gguf(metadata: NotedMetadata, architecture: str) -> None:
    """Refuse what nobody has read and what may change the result."""
    prefix = f"{architecture}."
    for key in metadata:
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or key in metadata.noted or name in HARMLESS_KEYS:
            continue
        value = metadata[key]
        if name not in NEUTRAL_VALUES or value != NEUTRAL_VALUES[name]:
            raise metadata.error(quoted(key), f"is {quoted(value)}, which is not supported", OTHER_MODEL)


def _refuse_unread_json(metadata: NotedMetadata) -> None:
    """Refuse what changes the result in some family and was not read for this one."""
    for key in CHANGING_JSON_KEYS & metadata.keys() - metadata.noted:
        value = metadata[key]
        if value is True or (value and value != 1):
            raise metadata.error(key, f"is {quoted(value)}, which is not supported", OTHER_MODEL)
