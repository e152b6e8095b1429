"""Reference kernels in plain torch, against which the kernels for a GPU are checked.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, S keys,
N rows (outputs), C columns (inputs).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Packed, Scoring, Seen
from llama_herd.model.pages import PAGE_TOKENS

#: What a kernel may be off, in parts of the sum of its terms' sizes. A factor and the result are rounded to
#: the type of the arithmetic, half a unit each; sums are float32.
ROUNDING = {torch.float32: 1e-5, torch.float16: 2**-10 + 1e-5, torch.bfloat16: 2**-8 + 1e-5}


def attend_plainly(q: Tensor, cached: Tensor, seen: Seen, scoring: Scoring) -> Tensor:
    """Attention of the seen rows of q (T, H, D) in pages (2, K, pages, PAGE_TOKENS, D): (R, H, D)."""
    scale, window, cap = scoring.scale_for(q.shape[-1]), scoring.window, scoring.cap
    found = []
    tokens = zip(seen.rows.tolist(), seen.num_keys.tolist(), seen.tables.tolist(), strict=True)
    for row, num_keys, table in tokens:
        at = torch.arange(max(0, num_keys - window) if window else 0, num_keys, device=q.device)
        pages = seen.pages[table + at // PAGE_TOKENS]
        both = cached[:, :, pages, at % PAGE_TOKENS]  # (2, K, S, D)
        keys, values = both.repeat_interleave(q.shape[1] // both.shape[1], dim=1)  # (H, S, D) each
        scores = scale * torch.einsum("hd,hsd->hs", q[row], keys)
        if cap:
            scores = cap * (scores / cap).tanh()
        found.append(torch.einsum("hs,hsd->hd", scores.softmax(dim=-1), values))
    return torch.stack(found)


def attend_packed_plainly(
    q: Tensor, keys: Tensor, values: Tensor, packed: Packed, scoring: Scoring
) -> Tensor:
    """Attention of packed queries (Q, H, D) over their own keys and values (S, K, D): (Q, H, D)."""
    scale, window = scoring.scale_for(q.shape[-1]), scoring.window
    found = []
    ends = (packed.query_ends.tolist(), packed.key_ends.tolist())
    for query, query_end, key, key_end in zip(ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False):
        own = [part[key:key_end].repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (keys, values)]
        scores = scale * torch.einsum("qhd,khd->hqk", q[query:query_end], own[0])
        at = torch.arange(key_end - key, device=q.device)
        last = at[len(at) - (query_end - query) :, None]  # the key of each query
        is_seen = (at <= last) & (at > last - window) if window else at <= last
        weights = scores.masked_fill(~is_seen, float("-inf")).softmax(dim=-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, own[1]))
    return torch.cat(found)


def attends_right(y: Tensor, q: Tensor, cached: Tensor, seen: Seen, scoring: Scoring) -> bool:
    """Whether y (R, H, D) is what the seen rows of q attend to, but for rounding."""
    wide = cached.double()
    sizes = torch.stack((wide[0], wide[1].abs()))
    exact, size = (attend_plainly(q.double(), values, seen, scoring) for values in (wide, sizes))
    return bool(((y.double() - exact).abs() <= ROUNDING[y.dtype] * size).all())


def is_rounded(y: Tensor, exact: Tensor, size: float = 0.0) -> bool:
    """Whether y is exact, but for rounding; `size`: of terms that may cancel each other."""
    room = ROUNDING[y.dtype] * exact.abs() + 1e-6 * (1 + size)
    return bool(((y.double() - exact).abs() <= room).all())


def multiplies_right(y: Tensor, x: Tensor, matrix: Tensor) -> bool:
    """Whether y (T, N) is x (T, C) @ matrix.T (N, C), but for rounding."""
    x, matrix = x.double(), matrix.double()
    return bool(((y.double() - x @ matrix.T).abs() <= ROUNDING[y.dtype] * (x.abs() @ matrix.abs().T)).all())


def complaint_of_check(check: Callable[[], bool], device: torch.device) -> str:
    """Why a kernel that is so checked cannot be used; empty if it can."""
    try:
        return "" if check() else "its results are wrong"
    except Exception as error:  # whatever a compiler or a driver may raise: the plain path is there
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises where nothing else can run either
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"


def packed_of(lengths: tuple[tuple[int, int], ...], device: torch.device | str) -> Packed:
    """Sequences of so many keys before their queries, and so many queries; their keys lie in order."""
    queries = [0, *(num_queries for _, num_queries in lengths)]
    keys = [0, *(past + num_queries for past, num_queries in lengths)]
    return Packed(
        rows=torch.arange(sum(queries), device=device),
        key_cells=torch.arange(sum(keys), device=device),
        query_ends=torch.tensor(queries, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32),
        key_ends=torch.tensor(keys, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32),
        max_queries=max(queries),
        max_keys=max(keys),
    )
