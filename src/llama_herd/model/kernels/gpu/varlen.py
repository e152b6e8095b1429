"""VarlenAttention: prompts of any lengths in one call, by the kernel that torch has for them.

Shapes: Q queries, S keys of all sequences, H heads, K kv heads, D head dim.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from llama_herd.model.attention_inputs import MAX_HEAD_DIM, Packed, Prompts, Scoring
from llama_herd.model.kernels.gpu.needs import Needs
from llama_herd.model.kernels.gpu.plain import ROUNDING, attend_packed_plainly, complaint_of_check, packed_of

DTYPES = (torch.float16, torch.bfloat16)

#: It returns a tensor unless it is asked for more.
_varlen_attn: Callable[..., Tensor] = varlen_attn  # type: ignore[assignment]

#: torch 2.11 groups queries without being told, and knows no such word.
_GROUPED: Mapping[str, bool] = (
    {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
)

#: Keys before the queries, and queries, of the sequences that are tried.
_TRIED = ((0, 70), (64, 5), (130, 33), (0, 1))


class VarlenAttention:
    """Attention of packed prompts: causal, each sequence's last query at its last key."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        """Whether it is made for such queries (.., H, D), and keys and values."""
        head_dim = q.shape[-1]
        is_known = q.dtype == cached.dtype and q.dtype in DTYPES and q.is_cuda
        return is_known and head_dim <= MAX_HEAD_DIM and head_dim % 8 == 0

    def __call__(self, q: Tensor, cached: Tensor, prompts: Prompts, out: Tensor, scoring: Scoring) -> None:
        """Write what the prompts' rows of q (T, H, D) attend to into theirs of `out` (T, H, D).

        `cached` are a layer's keys and values (2, K, pages, PAGE_TOKENS, D), of which theirs are copied.
        """
        assert not scoring.cap, "it knows no cap, and is not loaded for a model with one"
        for packed in prompts.packed:
            queries, gathered = q[packed.rows], packed.keys_and_values(cached)
            out[packed.rows] = self.attend(queries, *gathered, packed, scoring)
            del gathered  # before the next lot's

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, packed: Packed, scoring: Scoring) -> Tensor:
        """Attention of queries (Q, H, D) over keys and values (S, K, D) of their sequences: (Q, H, D)."""
        return _varlen_attn(
            q,
            keys,
            values,
            packed.query_ends,
            packed.key_ends,
            packed.max_queries,
            packed.max_keys,
            scale=scoring.scale_for(q.shape[-1]),
            window_size=(scoring.window - 1 if scoring.window else -1, 0),
            **_GROUPED,
        )


def complaint_of_varlen(needs: Needs, device: torch.device) -> str:
    """Why torch's kernel cannot be used for a model on this device; empty if it can."""
    varlen = VarlenAttention()
    numbers = torch.zeros(1, needs.num_heads, needs.head_dim, dtype=needs.dtype, device=device)
    if needs.cap or not varlen.takes(numbers, numbers):
        return "not made for this model"
    check = partial(_attends_right, varlen, needs, device)
    return complaint_of_check(lambda: all(map(check, needs.windows)), device)


def _attends_right(varlen: VarlenAttention, needs: Needs, device: torch.device, window: int) -> bool:
    """Whether random numbers attend as the formula says, but for rounding."""
    packed = packed_of(_TRIED, device)
    num_queries, num_keys = int(packed.query_ends[-1]), int(packed.key_ends[-1])
    q = torch.randn(num_queries, needs.num_heads, needs.head_dim).to(device, needs.dtype)
    keys, values = torch.randn(2, num_keys, needs.num_kv_heads, needs.head_dim).to(device, needs.dtype)
    scoring = Scoring(needs.scale, window)
    found = varlen.attend(q, keys, values, packed, scoring)
    q, keys, values = (tensor.double() for tensor in (q, keys, values))
    exact = attend_packed_plainly(q, keys, values, packed, scoring)
    size = attend_packed_plainly(q, keys, values.abs(), packed, scoring)
    return bool(((found.double() - exact).abs() <= 2 * ROUNDING[needs.dtype] * size).all())
