"""How many bytes the parts of a model take besides its weights, by formula and without torch.

Letters: H heads, K kv heads, D head dim. `item_bytes` are those of a number of the compute dtype.
"""

from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.tiling import GROUP_KEYS, GROUP_SCORES, SPAN_TOKENS

FLOAT32_BYTES, BFLOAT16_BYTES, INT64_BYTES = 4, 2, 8

#: Values that are dequantised at once. On a CPU they stay in its cache; a GPU wants more at a time.
SLAB_VALUES = {"cpu": 1 << 18, "cuda": 1 << 22}
#: Bytes that each of them takes while it is dequantised. Measured: up to 25.
SLAB_BYTES_PER_VALUE = 32

#: The native attention of tokens cuts a row into at most so many parts, each of whole blocks of so many keys.
#: A part has so many numbers beside those of a head.
MAX_PARTS, BLOCK_KEYS, NUMBERS_ASIDE = 16, 256, 33
#: The native attention of prompts: what queries and sums of a part of a span take at most.
PART_BYTES = 512 << 10


def kv_bytes_per_token(config: LlamaConfig, item_bytes: int) -> int:
    """Bytes of the keys and values of one token, in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * item_bytes


def table_bytes(config: LlamaConfig, max_length: int, *, consecutive: bool) -> int:
    """RoPE's tables and what masks are made of, for sequences up to `max_length`."""
    num_ropes = 2 if config.local_rope_base else 1
    rope = num_ropes * 2 * max_length * config.head_dim * FLOAT32_BYTES
    positions = (max_length + PAGE_TOKENS) * INT64_BYTES
    windows = {0, *config.windows} if consecutive else ()
    masks = sum(SPAN_TOKENS * (longest_past(max_length, window) + SPAN_TOKENS) for window in windows)
    return rope + positions + masks


def longest_past(max_length: int, window: int) -> int:
    """Most keys before a span that any of its queries can see."""
    return min(max_length, window - 1) if window else max_length


def attend_bytes(config: LlamaConfig, item_bytes: int, max_length: int, *, consecutive: bool) -> int:
    """The most that `attend` takes besides its result, when no sequence is longer than `max_length`."""
    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    longest = pages_for(max_length) * PAGE_TOKENS
    capping = 3 * H * FLOAT32_BYTES if config.score_cap else 0  # a score of each head, thrice
    if consecutive:  # one span at a time: its mask as numbers, and its keys and values once more
        return SPAN_TOKENS * longest * (item_bytes + capping) + item_bytes * 2 * longest * K * D
    num_keys, num_scores = max(GROUP_KEYS, longest), max(GROUP_SCORES, SPAN_TOKENS * longest)
    gathered = 2 * num_keys * K * D * item_bytes
    mask = num_scores * (1 + item_bytes + capping)
    if H == K or capping:
        return gathered + mask
    # Grouped queries with a mask: torch repeats keys and values, in float32 too, and keeps the scores thrice.
    repeated = 2 * num_keys * H * D * (item_bytes + FLOAT32_BYTES)
    return gathered + mask + repeated + 3 * num_scores * H * FLOAT32_BYTES


def native_row_bytes(config: LlamaConfig, max_length: int) -> int:
    """Bytes that a row takes at most while native kernels attend for it; a short one is one part."""
    num_parts = min(MAX_PARTS, -(-max_length // BLOCK_KEYS) + 1)
    sums = num_parts * config.num_heads * (config.head_dim + NUMBERS_ASIDE) * FLOAT32_BYTES
    return sums if num_parts > 1 else 0


def native_prompt_bytes(config: LlamaConfig) -> int:
    """Bytes in which a thread of the native attention of prompts works, at most.

    A part, and the keys, values, scores and weights of a block.
    """
    numbers = -(-config.head_dim // 32) * 32
    return PART_BYTES + 2 * BLOCK_KEYS * numbers * BFLOAT16_BYTES + BLOCK_KEYS * 32 * 6 + (32 << 10)


def slab_bytes(device_type: str) -> int:
    """Bytes that dequantising a slab takes, at most."""
    return SLAB_BYTES_PER_VALUE * SLAB_VALUES[device_type]
