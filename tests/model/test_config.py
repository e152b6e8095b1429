"""The shape of a model comes from its file alone: keys, fallbacks, ranges and refusals."""

from typing import Any

import numpy as np
import pytest

from benchmarks.shapes import LLAMA_2_7B
from llama_herd.errors import ModelFileError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.reading.metadata import Metadata

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.vocab_size": 32_000,
    "llama.embedding_length": 4_096,
    "llama.block_count": 32,
    "llama.attention.head_count": 32,
    "llama.feed_forward_length": 11_008,
    "llama.context_length": 4_096,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
JSON: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 4_096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11_008,
    "max_position_embeddings": 4_096,
    "rms_norm_eps": 1e-5,
}


def from_gguf(**changes: Any) -> LlamaConfig:
    """`changes` are keys after "llama.", with dots as double underscores; None leaves a key out."""
    changed = {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    values = {key: value for key, value in {**GGUF, **changed}.items() if value is not None}
    return LlamaConfig.from_metadata(Metadata(values, "some.gguf"))


def test_llama_2_7b_has_one_shape_in_all_three_forms() -> None:
    assert from_gguf() == LlamaConfig.from_json(JSON) == LLAMA_2_7B


def test_absent_keys_fall_back() -> None:
    config = from_gguf()
    assert (config.num_kv_heads, config.rope_base, config.head_dim, config.rope_dim) == (
        32,
        10_000.0,
        128,
        128,
    )


def test_present_keys_count() -> None:
    keys = {"attention__head_count_kv": 8, "rope__freq_base": 5e5, "attention__key_length": 64}
    config = from_gguf(**keys, attention__value_length=64, rope__dimension_count=64)
    assert (config.num_kv_heads, config.rope_base, config.head_dim, config.rope_dim) == (8, 5e5, 64, 64)
    gqa = {**JSON, "num_key_value_heads": 8, "rope_theta": 5e5, "head_dim": 64, "rope_scaling": None}
    assert LlamaConfig.from_json(gqa) == config


def test_rope_parameters_of_transformers_5_count() -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5}
    assert LlamaConfig.from_json({**JSON, "rope_parameters": rope}).rope_base == 5e5


def test_of_two_places_for_rope_the_one_counts_that_counts_in_transformers() -> None:
    linear = {"type": "linear", "factor": 2.0}
    both = {"rope_scaling": linear, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    config = LlamaConfig.from_json({**JSON, **both})
    assert (config.rope_base, config.rope_scaling.divisors) == (1e4, (2.0,) * 64)
    own = LlamaConfig.from_json({**JSON, **both, "rope_scaling": {}})
    assert (own.rope_base, own.rope_scaling.divisors) == (5e5, ())
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

    def scaled(context: int, **outside: int) -> LlamaConfig:
        inside = {**llama3, "original_max_position_embeddings": context}
        return LlamaConfig.from_json({**JSON, "rope_parameters": inside, **outside})

    assert scaled(1_024, original_max_position_embeddings=512) == scaled(512)


def test_the_tokens_give_the_size_of_the_vocabulary() -> None:
    values = {**GGUF, "llama.vocab_size": 5, "tokenizer.ggml.tokens": ("a", "b", "c")}
    assert LlamaConfig.from_metadata(Metadata(values)).vocab_size == 3


@pytest.mark.parametrize("key", GGUF)
def test_a_missing_gguf_key_is_named(key: str) -> None:
    values = {name: value for name, value in GGUF.items() if name != key}
    with pytest.raises(ModelFileError, match=f"some.gguf: {key} is missing"):
        LlamaConfig.from_metadata(Metadata(values, "some.gguf"))


@pytest.mark.parametrize("key", JSON)
def test_a_missing_or_null_json_key_is_named(key: str) -> None:
    others = {name: value for name, value in JSON.items() if name != key}
    with pytest.raises(ModelFileError, match=f"my/config.json: {key} is missing"):
        LlamaConfig.from_json(others, "my/config.json")
    with pytest.raises(ModelFileError, match=f"my/config.json: {key} is null, .* is needed"):
        LlamaConfig.from_json({**others, key: None}, "my/config.json")


BAD_GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "hidden 0": ({"embedding_length": 0}, "embedding_length is 0, allowed are 1 to 65536"),
    "hidden over": ({"embedding_length": 65_537}, "embedding_length is 65537, .* 65536"),
    "no layers": ({"block_count": 0}, "block_count is 0, allowed are 1 to 512"),
    "layers over": ({"block_count": 513}, "block_count is 513, .* 512"),
    "heads over": ({"attention__head_count": 1_025}, "head_count is 1025, .* 1024"),
    "no kv heads": ({"attention__head_count_kv": 0}, "head_count_kv is 0, .* 1 to 1024"),
    "kv heads do not divide": ({"attention__head_count_kv": 5}, "head_count_kv is 5, .* 32 heads"),
    "more kv heads than heads": ({"attention__head_count_kv": 64}, "head_count_kv is 64, .* 32 heads"),
    "heads do not divide": ({"attention__head_count": 3}, "key_length is missing, and 3 heads .* 4096"),
    "ffn over": ({"feed_forward_length": 2**20 + 1}, "feed_forward_length is 1048577, .* 1048576"),
    "context over": ({"context_length": 2**22 + 1}, "context_length is 4194305, .* 4194304"),
    "rope dimensions over": ({"rope__dimension_count": 1_025}, "dimension_count is 1025, .* 1024"),
    "part of a head turned": (
        {"rope__dimension_count": 64},
        "dimension_count is 64, but RoPE must turn all 128",
    ),
    "odd head": (
        {"attention__key_length": 5, "attention__value_length": 5},
        "dimension_count is 5, .* pairs",
    ),
    "values of another length": ({"attention__value_length": 64}, "value_length is 64, keys have 128"),
    "eps 0": ({"attention__layer_norm_rms_epsilon": 0.0}, "epsilon is 0.0, .* above 0 and below 1"),
    "eps 1": ({"attention__layer_norm_rms_epsilon": 1.0}, "epsilon is 1.0, .* above 0 and below 1"),
    "rope base 0": ({"rope__freq_base": 0.0}, "freq_base is 0.0, it must be above 1"),
    "vocabulary 0": ({"vocab_size": 0}, "vocab_size is 0, allowed are 1 to 1048576"),
    "layers of text": ({"block_count": "32"}, "block_count is of type str, an integer is needed"),
    "layers of a list": (
        {"block_count": np.array([2, 2]), "attention__head_count": np.array([32, 32])},
        "head_count is of type ndarray, an integer is needed",
    ),
    "layers of truth": ({"block_count": True}, "block_count is of type bool, an integer is needed"),
    "eps of text": ({"attention__layer_norm_rms_epsilon": "x"}, "epsilon is of type str, a number is needed"),
    "experts": ({"expert_count": 8}, "expert_count is 8, mixtures of experts are not supported"),
    "long scaling": (
        {"rope__scaling__type": "longrope"},
        "scaling.type is 'longrope', which is not .* shorter",
    ),
    "scaling below 0": ({"rope__scaling__factor": -1.0}, "scaling.factor is -1.0, it must be above 0"),
    "a scale of logits": ({"logit_scale": 0.5}, "logit_scale' is 0.5, which is not supported. Take another"),
    "a soft cap": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping' is 50.0, which is not"),
    "a key of tomorrow": ({"attention__sinks": 4}, "attention.sinks' is 4, which is not supported"),
    "not causal": ({"attention__causal": False}, "attention.causal' is False: its tokens see those"),
    "a yarn of its own": ({"rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor' is 0.5, which is not"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_GGUF.values(), ids=BAD_GGUF.keys())
def test_what_cannot_be_is_refused_by_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=f"some.gguf: .*llama.*{message}"):
        from_gguf(**changes)


def test_a_gemma_2_of_46_layers_may_have_fewer_numbers_than_heads() -> None:
    values = {key.replace("llama", "gemma2"): value for key, value in GGUF.items()}
    odd = {"gemma2.block_count": 46, "gemma2.embedding_length": 2, "gemma2.attention.head_count": 4}
    metadata = Metadata({**values, **odd, "general.architecture": "gemma2", "gemma2.attention.key_length": 8})
    assert LlamaConfig.from_metadata(metadata).attention_scale == 0.5**-0.5


def test_values_at_the_edge_of_their_range_are_taken() -> None:
    edge = {
        "embedding_length": 65_536,
        "block_count": 512,
        "context_length": 2**22,
        "attention__head_count": 1_024,
    }
    config = from_gguf(**edge, feed_forward_length=2**20)
    assert (config.hidden_size, config.num_layers, config.num_heads) == (65_536, 512, 1_024)


def test_rope_scaling_of_type_none_is_none() -> None:
    assert from_gguf(rope__scaling__type="none", rope__scaling__factor=1.0) == LLAMA_2_7B


def test_keys_that_change_nothing_are_taken() -> None:
    config = from_gguf(
        expert_count=0, expert_used_count=0, attention__causal=True, rope__scaling__finetuned=False
    )
    assert config == LLAMA_2_7B


@pytest.mark.parametrize("scaling", [{"rope__scaling__factor": 2.0}, {"rope__scale_linear": 2.0}], ids=str)
def test_scaling_without_a_type_is_linear(scaling: dict[str, Any]) -> None:
    typed = from_gguf(rope__scaling__type="linear", rope__scaling__factor=2.0)
    assert from_gguf(**scaling) == typed
    assert typed.rope_scaling.divisors == (2.0,) * 64


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("bert", "'bert': its tokens see those after them, which is not supported. Take an embedder that"),
        ("mamba", "'mamba', supported are llama.*Take a model of one of these"),
        ("qwen3moe", "'qwen3moe', mixtures of experts are not supported. Take a dense model"),
    ],
)
def test_another_architecture_is_named(architecture: str, message: str) -> None:
    values = {**GGUF, "general.architecture": architecture}
    with pytest.raises(ModelFileError, match=f"architecture is {message}"):
        LlamaConfig.from_metadata(Metadata(values))


def test_an_error_quotes_little_of_a_long_value() -> None:
    values = {**GGUF, "general.architecture": "x" * 100_000}
    with pytest.raises(ModelFileError, match=r"'x{50,60}\.\.\., supported are llama") as caught:
        LlamaConfig.from_metadata(Metadata(values))
    assert len(str(caught.value)) < 400


BAD_JSON: dict[str, tuple[dict[str, Any], str]] = {
    "model type": ({"model_type": "mamba"}, "model_type is 'mamba', supported are llama"),
    "experts": ({"model_type": "mixtral"}, "model_type is 'mixtral', mixtures of experts"),
    "images": (
        {"model_type": "llava", "text_config": {}},
        "model_type is 'llava', which sees more than text",
    ),
    "window": ({"sliding_window": 4_096}, "sliding_window is 4096, which is not supported"),
    "logits": ({"logits_scaling": 8.0}, "logits_scaling is 8.0, which is not supported"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config is .*, which is not supported"),
    "part of a head turned": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which is not"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
    "attention bias": ({"model_type": "phi3", "attention_bias": True}, "attention_bias is True, which"),
    "mlp bias": ({"model_type": "qwen3", "mlp_bias": True}, "mlp_bias is True, which is not"),
    "kv heads": ({"num_key_value_heads": 3}, "num_key_value_heads is 3, .* 32 heads"),
    "scaling": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: rope_type is 'dynamic'"),
    "parameters": (
        {"rope_parameters": {"rope_type": "longrope"}},
        "rope_parameters: rope_type is 'longrope'",
    ),
    "a factor that lacks": ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    "scaling of text": ({"rope_scaling": "linear"}, "rope_scaling is of type str, an object is needed"),
    "infinite eps": ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_a_json_that_cannot_be_is_refused_by_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=f"config.json: {message}"):
        LlamaConfig.from_json({**JSON, **changes})


# The families, each as its configs state it


def family_json(model_type: str, **changes: Any) -> LlamaConfig:
    return LlamaConfig.from_json({**JSON, "model_type": model_type, **changes})


@pytest.mark.parametrize(
    ("stated", "window"), [({}, 4_096), ({"sliding_window": None}, 0), ({"sliding_window": 8}, 8)], ids=str
)
def test_a_mistral_has_a_window_unless_it_says_that_it_has_none(stated: dict[str, Any], window: int) -> None:
    config = family_json("mistral", num_key_value_heads=8, **stated)
    assert {config.window(layer) for layer in range(32)} == {window}


def test_a_qwen_has_a_window_in_its_upper_layers_if_it_says_so() -> None:
    keys = {"sliding_window": 8, "max_window_layers": 30}
    assert family_json("qwen2", **keys).windows == ()
    assert family_json("qwen2", use_sliding_window=True, **keys).windows == (0,) * 30 + (8, 8)
    types = ["full_attention", "sliding_attention"] * 16
    assert family_json("qwen3", use_sliding_window=True, layer_types=types, **keys).windows == (0, 8) * 16


def test_a_gemma_has_a_window_in_all_layers_but_some() -> None:
    gemma = {"hidden_act": "gelu_pytorch_tanh", "sliding_window": 8, "head_dim": 128}
    assert family_json("gemma2", **gemma).windows == (8, 0) * 16
    assert family_json("gemma3_text", **gemma).windows == ((8,) * 5 + (0,)) * 5 + (8, 8)
    assert family_json("gemma3_text", sliding_window_pattern=2, **gemma).windows == (8, 0) * 16


def test_a_gemma_3_of_old_has_its_ropes_at_the_top_level() -> None:
    rope = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    config = family_json("gemma3_text", hidden_act="gelu_pytorch_tanh", **rope)
    assert (config.rope_base, config.local_rope_base) == (1e6, 5e3)
    assert set(config.rope_scaling.divisors) == {8.0}


@pytest.mark.parametrize(
    ("architecture", "num_layers", "scale"),
    [("gemma2", 42, 128), ("gemma2", 46, 256), ("gemma3", 34, 128), ("gemma3", 62, 256)],
)
def test_a_gguf_gemma_tells_the_scale_of_scores_by_its_layers(
    architecture: str, num_layers: int, scale: int
) -> None:
    values = {key.replace("llama.", f"{architecture}."): value for key, value in GGUF.items()}
    values |= {"general.architecture": architecture, f"{architecture}.block_count": num_layers}
    values |= {f"{architecture}.attention.{part}_length": 128 for part in ("key", "value")}
    values |= {f"{architecture}.attention.head_count": 16}
    config = LlamaConfig.from_metadata(Metadata(values))
    assert (config.attention_scale or config.head_dim**-0.5) == scale**-0.5


def test_a_gguf_gemma_2_that_is_older_than_the_keys_of_its_caps_has_its_own() -> None:
    values = {key.replace("llama.", "gemma2."): value for key, value in GGUF.items()}
    values |= {"general.architecture": "gemma2", "gemma2.attn_logit_softcapping": 40.0}
    config = LlamaConfig.from_metadata(Metadata(values))
    assert (config.score_cap, config.logit_cap) == (40, 30)


def test_a_gguf_pattern_is_a_period_or_a_flag_for_each_layer() -> None:
    pattern = np.arange(32) % 3 == 0
    window = {"attention__sliding_window": 8}
    flags = from_gguf(**window, attention__sliding_window_pattern=pattern)
    assert flags.windows == tuple(8 if has else 0 for has in pattern)
    period = from_gguf(**window, attention__sliding_window_pattern=4)
    assert period.windows == (8, 8, 8, 0) * 8


def test_a_granite_without_rope_is_refused() -> None:
    values = {key.replace("llama.", "granite."): value for key, value in GGUF.items()}
    values |= {"general.architecture": "granite", "granite.rope.scaling.finetuned": False}
    with pytest.raises(
        ModelFileError, match=r"granite\.rope\.scaling\.finetuned is false: this one is without RoPE"
    ):
        LlamaConfig.from_metadata(Metadata(values))


def test_a_yarn_may_state_that_it_is_a_whole_one() -> None:
    """llama.cpp's converter copies the key from a config.json, where transformers does not read it."""
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    key = "rope__scaling__yarn_ext_factor"
    assert from_gguf(**yarn, **{key: 1.0}) == from_gguf(**yarn)
    with pytest.raises(ModelFileError, match=r"yarn_ext_factor is 0.5, which is not supported"):
        from_gguf(**yarn, **{key: 0.5})
    with pytest.raises(ModelFileError, match=r"yarn_ext_factor' is 1.0, which is not supported"):
        from_gguf(rope__scaling__factor=4.0, **{key: 1.0})


def test_a_logarithmic_multiplier_of_yarn_may_be_none() -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    key = "rope__scaling__yarn_log_multiplier"
    assert from_gguf(**yarn, **{key: 0.0}) == from_gguf(**yarn)
    with pytest.raises(ModelFileError, match=r"yarn_log_multiplier' is 0.1, which is not supported"):
        from_gguf(**yarn, **{key: 0.1})


def test_an_attention_factor_of_yarn_counts_for_more_than_its_formula() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1_024}
    assert family_json("qwen2", rope_scaling=yarn).rope_scaling.gain == pytest.approx(1.13863, abs=1e-5)
    assert family_json("qwen2", rope_scaling={**yarn, "attention_factor": 1.5}).rope_scaling.gain == 1.5
    scaled = {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}
    assert family_json("qwen2", rope_scaling=scaled).rope_scaling.gain == 1
