"""The shape in a config.json, where families differ: RoPE, windows, scales, soft caps."""

from llama_herd.model.reading.metadata import (
    MAX_CONTEXT,
    MAX_LAYERS,
    MAX_ROPE_BASE,
    MAX_SCALE,
    OTHER_MODEL,
    UNQUANTISED,
    Metadata,
    NotedMetadata,
    quoted,
)
from llama_herd.model.shape.families import Family, layer_windows, local_layers
from llama_herd.model.shape.rope_scaling import Pairs, RopeScaling, json_scaling

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


#: Keys that any config.json may have as null, as if they were absent.
NULLABLE = frozenset({"attention_bias", "mlp_bias", "quantization_config", "rope_parameters", "rope_scaling"})
#: Keys of YaRN that may be null within `rope_parameters` and `rope_scaling`.
NULLABLE_OF_ROPE = frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"})

#: The context that a model with scaled RoPE was made for; at the top level it counts for more than within,
#: unless layers with a window have a RoPE of their own.
CONTEXT_KEY = "original_max_position_embeddings"
#: Kinds of layers: with a window, and without.
LAYER_KINDS = ("sliding_attention", "full_attention")


def with_defaults(config_json: Metadata, family: Family) -> Metadata:
    """A config.json with its family's defaults for absent keys, and without null where null is allowed."""
    values = Metadata({**family.defaults, **config_json}, config_json.source)
    return values.without_nulls(NULLABLE | family.nullable)


def json_rope(
    config_json: Metadata, family: Family, head_dim: int, context_length: int
) -> tuple[float, RopeScaling, float]:
    """RoPE's base and scaling, and the base of layers with a window; 0: they have the same.

    They stand at the top level, or within `rope_scaling` or (transformers 5) `rope_parameters`.
    """
    stated, local = _stated_ropes(config_json, family)
    base = _rope_base(stated, config_json, "rope_theta", family.rope_base)
    if stated.number("partial_rotary_factor", 0, 2, 1.0) != 1:
        raise stated.error(
            "partial_rotary_factor", "is not 1, but RoPE must turn all numbers of a head", OTHER_MODEL
        )
    scaling, local_base = json_scaling(stated, Pairs(head_dim, base), context_length), 0.0
    if family.local_rope_base:
        for key in ("rope_type", "type"):
            local.require(key, "default")
        local_base = _rope_base(local, config_json, "rope_local_base_freq", family.local_rope_base)
    return base, scaling, local_base


def json_windows(config_json: Metadata, family: Family, num_layers: int) -> tuple[int, ...]:
    """Each layer's window, by `layer_types` or else by the family's rule."""
    if not family.window:
        return ()
    window = config_json.integer("sliding_window", 0, MAX_CONTEXT, 0)
    if family.window == "all":
        return layer_windows(window, [True] * num_layers)
    if "layer_types" in config_json:
        types = config_json.items_of("layer_types", LAYER_KINDS, num_layers)
        has_window = [kind == "sliding_attention" for kind in types]
    elif family.window == "upper":
        first = config_json.integer("max_window_layers", 0, MAX_LAYERS)
        has_window = [layer >= first for layer in range(num_layers)]
    else:
        period = config_json.integer("sliding_window_pattern", 1, MAX_LAYERS, family.global_every)
        has_window = local_layers(period, num_layers)
    if family.window == "upper" and not config_json.flag("use_sliding_window", False):
        window = 0
    return layer_windows(window, has_window)


def json_biased(metadata: Metadata, family: Family) -> tuple[str, ...]:
    """What the names of matrices begin with that have biases, besides those of the family."""
    return tuple(start for key, start in family.bias_keys.items() if metadata.flag(key, False))


def json_scales(metadata: Metadata, family: Family) -> dict[str, float]:
    """The scales and soft caps that are stated, by the names of a config's fields."""
    keys = dict(family.caps)
    if family.multipliers:
        keys |= {
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention_scale": "attention_multiplier",
            "logit_divisor": "logits_scaling",
        }
    scales = metadata.numbers(keys)
    if family.query_scalar:
        scales["attention_scale"] = metadata.number("query_pre_attn_scalar", 0, MAX_SCALE) ** -0.5
    return scales


def refuse_unread_json_keys(metadata: NotedMetadata) -> None:
    """Refuse what changes the result in some family and was not read for this one."""
    for key in CHANGING_JSON_KEYS & metadata.keys() - metadata.noted:
        value = metadata[key]
        if value is True or (value and value != 1):
            help = UNQUANTISED if key == "quantization_config" else OTHER_MODEL
            raise metadata.error(key, f"is {quoted(value)}, which is not supported", help)


def _stated_ropes(config_json: Metadata, family: Family) -> tuple[Metadata, Metadata]:
    """RoPE's parameters, and those of layers with a window. The older key counts if it is not empty."""
    parameters, scaling = (config_json.nested(key, {}) for key in ("rope_parameters", "rope_scaling"))
    stated, local = scaling or parameters, Metadata({})
    if not family.local_rope_base:
        for kind in LAYER_KINDS:
            if stated.get(kind):
                raise stated.error(kind, "has a RoPE of its own, which is not supported", OTHER_MODEL)
        if CONTEXT_KEY in config_json:
            stated = Metadata({**stated, CONTEXT_KEY: config_json[CONTEXT_KEY]}, stated.source)
    elif parameters:
        local, full = (parameters.nested(kind) for kind in LAYER_KINDS)
        stated = Metadata({**full, **scaling}, full.source)
    return stated.without_nulls(NULLABLE_OF_ROPE), local


def _rope_base(rope: Metadata, config_json: Metadata, key: str, default: float) -> float:
    """RoPE's base where its own parameters say it, else from the top level."""
    metadata, key = (rope, "rope_theta") if "rope_theta" in rope else (config_json, key)
    return metadata.number(key, 1, MAX_ROPE_BASE, default)
