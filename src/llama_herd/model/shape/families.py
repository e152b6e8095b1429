"""The families of models that we compute: one table of what sets each apart from Llama 2.

What a file states in numbers (windows, scales, soft caps, RoPE) the config reads; here stands what goes
without saying in a family. A file is known by what it says of itself, never by its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Family:
    """One row. Every default is Llama 2's."""

    name: str
    architecture: str  # `general.architecture` of its GGUF files
    model_type: str  # in its config.json

    #: GGUF files hold the rows of Q and K in interleaved pairs, for a RoPE that turns neighbours.
    interleaved: bool = False
    #: Which matrices of a layer have biases, by what their names begin with: those that go without saying,
    biased: tuple[str, ...] = ()
    #: and those of a Hugging Face folder, where this key of config.json is true.
    bias_keys: Mapping[str, str] = field(default_factory=dict)
    #: Queries and keys are normalised head by head, before RoPE.
    qk_norm: bool = False
    #: Q, K and V are stored as one weight, gate and up as another.
    fused: bool = False
    #: What attention and MLP give is normalised before it is added.
    post_norms: bool = False
    #: Norms of a Hugging Face folder are stored as w and mean 1 + w.
    norms_from_one: bool = False
    #: The MLP's activation, as config.json names it, and under which key.
    activation: str = "silu"
    activation_key: str = "hidden_act"
    #: Embeddings are scaled by the root of the hidden size.
    scaled_embedding: bool = False
    #: The file states scales of embeddings, residuals, scores and logits.
    multipliers: bool = False
    #: Soft caps that the file may state: a config's field, and its key in files of both kinds.
    caps: Mapping[str, str] = field(default_factory=dict)
    #: The soft caps of a GGUF file that is older than their keys.
    gguf_caps: Mapping[str, float] = field(default_factory=dict)
    #: Scores are scaled by what config.json states; GGUF files leave it
    #: out: it is a head's size, but hidden / heads in a model of so many layers.
    query_scalar: bool = False
    wide_query_layers: int = 0
    #: Which layers have the window that config.json states; upper ones only if `use_sliding_window` says so.
    window: Literal["", "all", "upper", "local"] = ""
    #: Every n-th layer sees all tokens, the others have the window. 0: all layers have it.
    global_every: int = 0
    #: The window if a GGUF file states none.
    gguf_window: int = 0
    #: RoPE's base in layers with a window. 0: that of all layers.
    local_rope_base: float = 0.0
    rope_base: float = 10_000.0
    #: Control tokens of a SentencePiece vocabulary without white space behind them: GGUF files cannot say it.
    stripping: frozenset[str] = frozenset()
    #: Keys that config.json may leave out, as transformers fills them in.
    defaults: Mapping[str, object] = field(default_factory=dict)
    #: Keys that config.json may have as null: then it is without what they state, whatever their default.
    nullable: frozenset[str] = frozenset()


#: A null number of KV heads is that of the heads, a null head size their share of the hidden size.
HEADS = frozenset({"num_key_value_heads"})
HEAD_SIZE = frozenset({"head_dim"})
WINDOW = frozenset({"sliding_window"})
LAYER_TYPES = frozenset({"layer_types"})

SCORE_CAP = {"score_cap": "attn_logit_softcapping"}
LOGIT_CAP = {"logit_cap": "final_logit_softcapping"}

#: What config.json may leave out in the families of these makers.
QWEN = {"num_key_value_heads": 32, "max_window_layers": 28, "sliding_window": 4_096}
GEMMA = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4_096,
    "tie_word_embeddings": True,
}

ATTENTION_BIAS = {"attention_bias": "attn_"}
MLP_BIAS = {"mlp_bias": "ffn_"}

LLAMA = Family(
    "Llama",
    "llama",
    "llama",
    interleaved=True,
    bias_keys=ATTENTION_BIAS | MLP_BIAS,
    nullable=HEADS | HEAD_SIZE,
)

FAMILIES = (
    LLAMA,
    Family(
        "Mistral",
        "llama",
        "mistral",
        interleaved=True,
        window="all",
        defaults={"sliding_window": 4_096, "num_key_value_heads": 8},
        nullable=HEAD_SIZE | WINDOW,
    ),
    Family(
        "Qwen 2",
        "qwen2",
        "qwen2",
        biased=("attn_q", "attn_k", "attn_v"),
        window="upper",
        defaults=QWEN,
        nullable=HEADS | WINDOW | LAYER_TYPES,
    ),
    Family(
        "Qwen 3",
        "qwen3",
        "qwen3",
        bias_keys=ATTENTION_BIAS,
        qk_norm=True,
        window="upper",
        defaults=QWEN | {"head_dim": 128},
        nullable=HEADS | WINDOW | LAYER_TYPES,
    ),
    Family(
        "Granite",
        "granite",
        "granite",
        interleaved=True,
        bias_keys=ATTENTION_BIAS | MLP_BIAS,
        multipliers=True,
        defaults={"attention_multiplier": 1.0},
        nullable=HEADS,
    ),
    Family(
        "Phi-3",
        "phi3",
        "phi3",
        fused=True,
        window="all",
        stripping=frozenset({"</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}),
        nullable=HEADS | WINDOW,
    ),
    Family(
        "Gemma 2",
        "gemma2",
        "gemma2",
        bias_keys=ATTENTION_BIAS,
        post_norms=True,
        norms_from_one=True,
        activation="gelu_pytorch_tanh",
        activation_key="hidden_activation",
        scaled_embedding=True,
        caps=SCORE_CAP | LOGIT_CAP,
        gguf_caps={"score_cap": 50.0, "logit_cap": 30.0},
        query_scalar=True,
        wide_query_layers=46,
        window="local",
        global_every=2,
        gguf_window=4_096,
        defaults=GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        nullable=LAYER_TYPES | {*SCORE_CAP.values(), *LOGIT_CAP.values()},
    ),
    Family(
        "Gemma 3",
        "gemma3",
        "gemma3_text",
        bias_keys=ATTENTION_BIAS,
        qk_norm=True,
        post_norms=True,
        norms_from_one=True,
        activation="gelu_pytorch_tanh",
        activation_key="hidden_activation",
        scaled_embedding=True,
        caps=LOGIT_CAP,
        query_scalar=True,
        wide_query_layers=62,
        window="local",
        global_every=6,
        rope_base=1e6,
        local_rope_base=10_000.0,
        defaults=GEMMA,
        nullable=LAYER_TYPES | {*LOGIT_CAP.values()},
    ),
)


def local_layers(period: int, num_layers: int) -> list[bool]:
    """Which layers have a window when every `period`th has none; period 0: all."""
    return [not period or (layer + 1) % period != 0 for layer in range(num_layers)]


def layer_windows(window: int, has_window: Sequence[bool]) -> tuple[int, ...]:
    """Each layer's window, 0 where it has none; empty when no layer has one."""
    return tuple(window if has else 0 for has in has_window) if window and any(has_window) else ()
