"""Reference kernels in plain torch, against which the kernels for a GPU are checked.

Shapes: T tokens of the ragged batch, R of them that attend, H heads, K kv heads, D head dim, S keys,
N rows (outputs), C columns (inputs).
"""

from collections.abc import Callable

import torch
from torch import Tensor

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
        both = cached[:, :, pages, at % PAGE_TOKENS]  # (2, K, S, D)
        keys, values = both.repeat_interleave(q.shape[1] // both.shape[1], dim=1)  # (H, S, D) each
        scores = scale * torch.einsum("hd,hsd->hs", q[row], keys)
        if cap:
            scores = cap * (scores / cap).tanh()
        found.append(torch.einsum("hs,hsd->hd", scores.softmax(dim=-1), values))
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
