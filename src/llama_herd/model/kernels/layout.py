"""How queries and pages lie in memory where kernels read them."""

from torch import Tensor

from llama_herd.model.pages import PAGE_TOKENS

#: The most numbers of a head that any kernel is made for.
MAX_HEAD_DIM = 256


def are_readable(q: Tensor, cached: Tensor) -> bool:
    """Whether q (T, H, D), and keys and values (2, K, pages, PAGE_TOKENS, D), lie as kernels read them."""
    head_dim = q.shape[-1]
    return (
        q.dtype == cached.dtype
        and head_dim <= MAX_HEAD_DIM
        and cached.shape[3] == PAGE_TOKENS
        and cached.stride()[2:] == (PAGE_TOKENS * head_dim, head_dim, 1)
        and q.stride()[1:] == (head_dim, 1)
    )
