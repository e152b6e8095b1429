"""What kernels compute, in plain torch, and whether a result of theirs is that but for rounding.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, S keys,
N rows (outputs), C columns (inputs).
"""

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.pages import PAGE_TOKENS

#: What a kernel may be off, in parts of the sum of its terms' sizes. A factor and the result are rounded to
#: the type of the arithmetic, half a unit each; sums are float32.
ROUNDING = {torch.float32: 1e-5, torch.float16: 2**-10 + 1e-5, torch.bfloat16: 2**-7 + 1e-5}


def attend_plainly(q: Tensor, cached: Tensor, seen: Seen, scoring: Scoring) -> Tensor:
    """Attention of the seen rows of q (T, H, D) in pages (2, K, pages, PAGE_TOKENS, D): (R, H, D)."""
    scale, window, cap = scoring.scale_for(q.shape[-1]), scoring.window, scoring.cap
    found = []
    tokens = zip(seen.rows.tolist(), seen.num_keys.tolist(), seen.tables.tolist(), strict=True)
    for row, num_keys, table in tokens:
        at = torch.arange(max(0, num_keys - window) if window else 0, num_keys, device=q.device)
        pages = seen.pages[table + at // PAGE_TOKENS]
        keys, values = cached[:, :, pages, at % PAGE_TOKENS]  # (K, S, D) each
        scores = scale * torch.einsum("kgd,ksd->kgs", q[row].view(len(keys), -1, q.shape[-1]), keys)
        if cap:
            scores = cap * (scores / cap).tanh()
        found.append(torch.einsum("kgs,ksd->kgd", scores.softmax(dim=-1), values).flatten(0, 1))
    return torch.stack(found)


def tokens_of(spans: SeenSpans) -> Seen:
    """The tokens of spans, one by one."""
    first, device = spans.first, spans.num_tokens.device
    ahead = torch.cat([torch.arange(num, device=device) for num in spans.num_tokens.tolist()])
    rows, num_keys, tables = (
        part.repeat_interleave(spans.num_tokens) for part in (first.rows, first.num_keys, first.tables)
    )
    return Seen(rows + ahead, num_keys + ahead, tables, first.pages)


def attends_right(y: Tensor, q: Tensor, cached: Tensor, seen: Seen, scoring: Scoring) -> bool:
    """Whether y (R, H, D) is what the seen rows of q attend to, but for rounding."""
    wide = cached.double()
    sizes = torch.stack((wide[0], wide[1].abs()))
    exact, size = (attend_plainly(q.double(), values, seen, scoring) for values in (wide, sizes))
    return bool(((y.double() - exact).abs() <= ROUNDING[y.dtype] * size).all())


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float64."""
    wide = x.double()
    return wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.double()


def exact_gate(gate_up: Tensor, activation: str) -> Tensor:
    """A gate in float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")) * up


def is_rounded(y: Tensor, exact: Tensor, size: float = 0.0) -> bool:
    """Whether y is exact, but for rounding; `size`: of terms that may cancel each other."""
    room = ROUNDING[y.dtype] * exact.abs() + 1e-6 * (1 + size)
    return bool(((y.double() - exact).abs() <= room).all())


def multiplies_right(y: Tensor, x: Tensor, matrix: Tensor) -> bool:
    """Whether y (T, N) is x (T, C) @ matrix.T (N, C), but for rounding."""
    x, matrix = x.double(), matrix.double()
    return bool(((y.double() - x @ matrix.T).abs() <= ROUNDING[y.dtype] * (x.abs() @ matrix.abs().T)).all())
