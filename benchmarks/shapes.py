"""Shapes of Llama to measure with."""

from llama_herd.model.config import LlamaConfig


def random_config(
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    ffn_size: int,
    num_kv_heads: int | None = None,
    vocab_size: int = 32_000,
    context_length: int = 8_192,
) -> LlamaConfig:
    """As many kv heads as heads unless told otherwise."""
    head_dim = hidden_size // num_heads
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads,
        head_dim=head_dim,
        ffn_size=ffn_size,
        context_length=context_length,
        rms_eps=1e-5,
        rope_base=10_000.0,
        rope_dim=head_dim,
    )


#: The shape of Llama-2-7B (https://arxiv.org/abs/2307.09288).
LLAMA_2_7B = random_config(
    hidden_size=4_096, num_layers=32, num_heads=32, ffn_size=11_008, context_length=4_096
)
