"""The forward of a Llama in float64, written out plainly: one sequence, no cache, no batch, nothing fused.

Shapes: T tokens, H heads, K kv heads, D head dim, C hidden size, V vocabulary. It shares no
code with the model.
"""

import torch
from torch import Tensor

from llama_herd.model.config import LlamaConfig


def logits64(weights: dict[str, Tensor], config: LlamaConfig, ids: list[int]) -> Tensor:
    """Logits (T, V) after each of `ids`. Weights by GGUF name, rows of Q and K in transformers' order."""
    w = {name: weight.double() for name, weight in weights.items()}
    x = w["token_embd.weight"][ids]  # (T, C)
    for layer in range(config.num_layers):
        block = {name.split(".")[2]: weight for name, weight in w.items() if name.startswith(f"blk.{layer}.")}
        x = x + _attention(_normed(x, block["attn_norm"], config), block, config)
        y = _normed(x, block["ffn_norm"], config)
        gate = y @ block["ffn_gate"].T
        x = x + (gate * gate.sigmoid() * (y @ block["ffn_up"].T)) @ block["ffn_down"].T
    output = w.get("output.weight", w["token_embd.weight"])
    return _normed(x, w["output_norm.weight"], config) @ output.T


def _normed(x: Tensor, weight: Tensor, config: LlamaConfig) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + config.rms_eps).sqrt() * weight


def _attention(x: Tensor, block: dict[str, Tensor], config: LlamaConfig) -> Tensor:
    T, D = len(x), config.head_dim
    queries = _turned((x @ block["attn_q"].T).view(T, -1, D), config)  # (T, H, D)
    keys = _turned((x @ block["attn_k"].T).view(T, -1, D), config)  # (T, K, D)
    values = (x @ block["attn_v"].T).view(T, -1, D)
    shared_by = config.num_heads // config.num_kv_heads
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    heads = []
    for head in range(config.num_heads):
        scores = queries[:, head] @ keys[:, head // shared_by].T / D**0.5  # (T, T)
        heads.append(scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ values[:, head // shared_by])
    return torch.cat(heads, dim=-1) @ block["attn_output"].T


def _turned(x: Tensor, config: LlamaConfig) -> Tensor:
    """RoPE as a product of complex numbers: value i is the real part, value i + D/2 the imaginary one."""
    T, _, D = x.shape
    speeds = config.rope_base ** (-torch.arange(D // 2, dtype=torch.float64) / (D // 2))
    angles = torch.arange(T, dtype=torch.float64)[:, None, None] * speeds  # (T, 1, D / 2)
    turned = torch.complex(x[..., : D // 2], x[..., D // 2 :]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)
