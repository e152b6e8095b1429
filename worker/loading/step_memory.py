"""The memory of the largest step besides weights and cache: an upper bound, by formula.

Letters: T tokens of the step, R rows that draw, H heads, K kv heads, D head dim, C hidden size, F ffn size,
V vocabulary.
"""

from dataclasses import dataclass, replace

import torch

from llama_herd.model.attend import attend_bytes
from llama_herd.model.batch import SHORT_TOKENS
from llama_herd.model.config import LlamaConfig
from llama_herd.model.kernels.attention import Attention
from llama_herd.model.kernels.prefill_attention import PrefillAttention
from llama_herd.worker.engine.decode_graphs import DecodeGraphs, bucket_of
from llama_herd.worker.engine.scheduler import MAX_SCORED_TOKENS
from llama_herd.worker.engine.slots import Slots

#: Per logit of a row that draws: rules, filters, sorted values with their ids, noise. Measured: 37.
DRAWING_BYTES = 40
#: Per logit of a scored token: its exponential, while these are summed up.
SCORING_BYTES = 4


@dataclass(frozen=True)
class StepMemory:
    """Memory of the largest step: `slots` rows beside `prompt_tokens`, or `alone_tokens` by themselves."""

    config: LlamaConfig
    dtype: torch.dtype
    consecutive: bool  # whether a sequence's pages lie next to each other
    slots: int
    prompt_tokens: int
    alone_tokens: int

    def activation_bytes(self, cache_tokens: int) -> int:
        """The part of one layer that takes most. No step has more tokens than the cache."""
        H, K, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        C, F, size = self.config.hidden_size, self.config.ffn_size, self.dtype.itemsize
        T = min(self._num_tokens, cache_tokens)
        wide = torch.float32.itemsize
        family = self.config.family
        qkv = 2 * C + (H + 2 * K) * D * (2 if family.qkv_bias else 1)
        if family.qk_norm:
            qkv += (H + K) * D
        rotating = size * (qkv + (H + K) * D) + (3 if family.qk_norm else 2) * wide * (H + K) * D
        attending = size * (qkv + (H + K) * D + 3 * H * D)
        mlp = size * (5 * C + 4 * F)
        norm = size * (3 if family.post_norms else 2) * C + 3 * wide * C
        rope = 2 * wide * D * (2 if self.config.local_rope_base else 1)
        return T * (rope + max(rotating, attending, mlp, norm))

    def attention_bytes(self, max_length: int) -> int:
        """The larger of `attend` and the copies of a prompt's pages in one layer; and what kernels take."""
        copies = 2 * max_length * self.config.num_kv_heads * self.config.head_dim * self.dtype.itemsize
        attending = attend_bytes(self.config, self.dtype, max_length, consecutive=self.consecutive)
        H, D = self.config.num_heads, self.config.head_dim
        native = 0
        if self.consecutive:
            rows = self.slots * SHORT_TOKENS * Attention.bytes_per_row(H, D, max_length)
            native = rows + torch.get_num_threads() * PrefillAttention.bytes_per_thread(D)
        return max(copies, attending) + native

    @property
    def logits_bytes(self) -> int:
        """The logits in float32, and their use: first rows draw, then tokens are scored."""
        num_scored = min(MAX_SCORED_TOKENS, self._num_tokens)
        logits = torch.float32.itemsize * (self.slots + num_scored)
        return self.config.vocab_size * (logits + max(DRAWING_BYTES * self.slots, SCORING_BYTES * num_scored))

    def graph_bytes(self, max_length: int) -> int:
        """What steps that overlap take besides, on a GPU: slots, their logits, and the graphs' own pool."""
        rows = bucket_of(self.slots)
        drawing = self.config.vocab_size * rows * (torch.float32.itemsize + DRAWING_BYTES)
        kept = Slots.num_bytes(self.slots, max_length) + DecodeGraphs.num_bytes(rows, self.config.vocab_size)
        return kept + drawing + replace(self, alone_tokens=rows, prompt_tokens=0).activation_bytes(rows)

    @property
    def _num_tokens(self) -> int:
        return max(self.alone_tokens, self.prompt_tokens + self.slots)
