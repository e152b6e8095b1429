"""Each key of a config.json, absent or null, means what it means to transformers, or is refused."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.model_file import ROPE_NAME, expected_shapes
from llama_herd.model.files.safetensors_model import HEAD_NAME, MAX_CONFIG_BYTES, hf_name
from llama_herd.model.reading.json_file import read_json
from tests.model.tiny_family import GEMMA2, LLAMA3_ROPE, SHAPE, YARN

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = pytest.mark.long

Json = dict[str, Any]
#: Numbers that a config decides, by what they are for; None: it is refused.
Facts = dict[str, list[float]] | None

#: Every key that is read for one family or another, or that a family of transformers reads.
KEYS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "intermediate_size", "max_position_embeddings", "rms_norm_eps", "hidden_act"),
    *("hidden_activation", "rope_theta", "rope_local_base_freq", "original_max_position_embeddings"),
    *("rope_parameters", "rope_scaling", "partial_rotary_factor", "sliding_window", "layer_types"),
    *("max_window_layers", "use_sliding_window", "sliding_window_pattern", "embedding_multiplier"),
    *("residual_multiplier", "attention_multiplier", "logits_scaling", "attn_logit_softcapping"),
    *("final_logit_softcapping", "query_pre_attn_scalar", "attention_bias", "mlp_bias"),
    *("use_bidirectional_attention", "quantization_config"),
)
#: What it says of RoPE, and the keys within.
ROPE = ("rope_parameters", "rope_scaling")
ROPE_KEYS = (
    *("rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "partial_rotary_factor"),
    *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"),
    *("mscale_all_dim", "truncate", "sliding_attention", "full_attention"),
)
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
BASES: dict[str, Json] = {
    "llama": {"rope_parameters": LLAMA3_ROPE},
    "llama, old": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "mistral": {"sliding_window": 24, "rope_parameters": LINEAR},
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "rope_parameters": {
            **YARN,
            "attention_factor": 1.5,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
        },
    },
    "qwen2, old": {"rope_theta": 500.0, "rope_scaling": {**YARN, "rope_theta": 90.0}},
    "qwen3": {"head_dim": 32, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
        "logits_scaling": 8.0,
    },
    "phi3": {"sliding_window": 24},
    "gemma2": GEMMA2,
    "gemma3_text": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "final_logit_softcapping": 0.5,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            "full_attention": LINEAR,
        },
    },
    "gemma3_text, old": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "rope_theta": 500.0,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
}
#: Refused here alone: what transformers has a default for that no file means,
REFUSED = {(key, "absent") for key in ("num_hidden_layers", "max_position_embeddings", "rms_norm_eps")}
#: and what it takes, in one family or another: then fails at the first token (a window), does not read
#: (a pattern, a part of heads), fills in by halves (the two RoPEs of Gemma 3), or computes as we do not
#: (YaRN's factor by two lengths, or without rounding).
REFUSED |= {
    ("sliding_window", "null"),
    ("sliding_window_pattern", "null"),
    *(
        (f"rope_parameters: {kind}_attention", how)
        for kind in ("full", "sliding")
        for how in ("absent", "null")
    ),
    *(
        (f"{outer}: {key}", "null")
        for outer in ROPE
        for key in ("factor", "truncate", "partial_rotary_factor")
    ),
}
#: Taken here alone: it tells nothing of weights without biases, and of RoPE that is not scaled.
TAKEN = {(key, "null") for key in ("attention_bias", "mlp_bias", "original_max_position_embeddings")}


def base_of(name: str) -> Json:
    """A config.json as transformers saves it, but for the layers' kinds, which follow from other keys."""
    from transformers import AutoConfig

    saved = AutoConfig.for_model(name.split(",")[0], **SHAPE, **deepcopy(BASES[name])).to_dict()
    old = {"rope_parameters"} if "old" in name else set()
    kept = {key: value for key, value in saved.items() if key not in {"layer_types", *old}}
    return {**kept, **BASES[name], "num_hidden_layers": 6 if name.startswith("gemma3") else 2}


def changed(base: Json) -> Iterator[tuple[str, str, Json]]:
    """Each key absent and null, also within RoPE's."""
    for key in KEYS:
        others = {name: value for name, value in base.items() if name != key}
        if key in base:
            yield key, "absent", others
        yield key, "null", {**others, key: None}
    for outer in ROPE:
        rope = base.get(outer) or {}
        for key in ROPE_KEYS if rope else ():
            others = {name: value for name, value in rope.items() if name != key}
            if key in rope:
                yield f"{outer}: {key}", "absent", {**base, outer: others}
            yield f"{outer}: {key}", "null", {**base, outer: {**others, key: None}}


def of_transformers(config_json: Json) -> Facts:
    """What transformers makes of it; any error is a refusal."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    try:
        config = AutoConfig.for_model(**deepcopy(config_json))
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(config)
    except Exception:
        return None
    return facts_of(model)


def facts_of(model: "PreTrainedModel") -> Facts:
    config, inner = model.config, model.model
    attentions, rope = [layer.self_attn for layer in inner.layers], inner.rotary_emb
    of_all = getattr(config, "sliding_window", None) if config.model_type in ("mistral", "phi3") else None
    kinds = ["full_attention_", "sliding_attention_"] if config.model_type == "gemma3_text" else [""]
    is_granite = config.model_type == "granite"
    embed_scale = getattr(inner.embed_tokens, "scalar_embed_scale", 1.0)
    return {
        "windows": [getattr(one, "sliding_window", of_all) or 0 for one in attentions],
        "speeds": [speed for kind in kinds for speed in getattr(rope, f"{kind}inv_freq").tolist()],
        "gain": [getattr(rope, f"{kinds[0]}attention_scaling")],
        "attention scale": [attentions[0].scaling],
        "score cap": [getattr(attentions[0], "attn_logit_softcapping", None) or 0.0],
        "logit cap": [getattr(config, "final_logit_softcapping", None) or 0.0],
        "embedding scale": [inner.embedding_multiplier if is_granite else embed_scale],
        "residual scale": [inner.layers[0].residual_multiplier if is_granite else 1.0],
        "logit divisor": [config.logits_scaling if is_granite else 1.0],
        "eps": [inner.norm.variance_epsilon if hasattr(inner.norm, "variance_epsilon") else inner.norm.eps],
    } | {
        name: list(map(float, weight.shape)) for name, weight in model.named_parameters() if name != HEAD_NAME
    }


def of_ours(config_json: Json, path: Path) -> Facts:
    """What we make of it, once it is written to a file."""
    path.write_text(json.dumps(config_json))
    try:
        config = LlamaConfig.from_json(read_json(path, MAX_CONFIG_BYTES))
    except ModelFileError:
        return None
    pairs = range(config.head_dim // 2)
    divisors = config.rope_scaling.divisors or [1.0 for _ in pairs]
    speeds = [config.rope_base ** (-2 * pair / config.head_dim) / divisors[pair] for pair in pairs]
    if config.local_rope_base:
        speeds += [config.local_rope_base ** (-2 * pair / config.head_dim) for pair in pairs]
    return {
        "windows": [config.window(layer) for layer in range(config.num_layers)],
        "speeds": speeds,
        "gain": [config.rope_scaling.gain],
        "attention scale": [config.attention_scale or config.head_dim**-0.5],
        "score cap": [config.score_cap],
        "logit cap": [config.logit_cap],
        "embedding scale": [config.embedding_scale],
        "residual scale": [config.residual_scale],
        "logit divisor": [config.logit_divisor],
        "eps": [config.rms_eps],
    } | {
        hf_name(name, config.family): list(map(float, shape))
        for name, shape in expected_shapes(config).items()
        if name not in (ROPE_NAME, "output.weight")
    }


def difference(theirs: Facts, ours: Facts) -> str:
    """In what we differ from transformers; empty: in nothing."""
    if theirs is None or ours is None:
        return "" if theirs is ours else "refused here alone" if ours is None else "taken here alone"
    assert theirs.keys() == ours.keys()
    wrong = [name for name in theirs if ours[name] != pytest.approx(theirs[name], rel=1e-5)]
    return "; ".join(f"{name} is {ours[name]}, right is {theirs[name]}" for name in wrong)


def for_weights_of(facts: Facts, base: Facts) -> Facts:
    """None where the weights of `base` do not fit, since then the folder is refused."""
    assert base is not None
    shapes = {name for name in base if name.endswith((".weight", ".bias"))}
    fits = facts is not None and {name: facts.get(name) for name in shapes} == {
        name: base[name] for name in shapes
    }
    return facts if fits else None


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("qwen2", "gemma3_text"))) for name in BASES],
)
def test_absent_and_null_are_what_they_are_to_transformers(name: str, tmp_path: Path) -> None:
    config_json, path = base_of(name), tmp_path / "config.json"
    base = of_transformers(config_json)
    assert base is not None
    assert difference(base, of_ours(config_json, path)) == ""
    wrong = {}
    for key, state, changed_json in changed(config_json):
        theirs = for_weights_of(of_transformers(changed_json), base)
        ours = for_weights_of(of_ours(changed_json, path), base)
        allowed = TAKEN if theirs is None else REFUSED if ours is None else frozenset()
        if (key, state) not in allowed:
            wrong[key, state] = difference(theirs, ours)
    assert {case: text for case, text in wrong.items() if text} == {}


DEFAULT = {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"rope_parameters": {**YARN, "beta_fast": 1, "beta_slow": 32}}),
        ("qwen2", {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": DEFAULT}}),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": DEFAULT,
                    "sliding_attention": {"type": "linear", "rope_theta": 500.0, "factor": 4.0},
                }
            },
        ),
        (
            "gemma3_text",
            {
                "rope_parameters": {"full_attention": YARN, "sliding_attention": DEFAULT},
                "original_max_position_embeddings": 64,
            },
        ),
    ],
    ids=["betas of YaRN swapped", "by kinds of layers", "a local scaling by `type`", "a context beside both"],
)
def test_a_rope_that_is_stated_unusually_is_that_of_transformers_or_refused(
    name: str, changes: Json, tmp_path: Path
) -> None:
    config_json = {**base_of(name), **changes}
    ours = of_ours(config_json, tmp_path / "config.json")
    assert ours is None or difference(of_transformers(config_json), ours) == ""
