"""The memory of the largest step besides weights and cache: an upper bound, by formula.

Letters: T tokens of the step, H heads, K kv heads, D head dim, C hidden size, F ffn size,
V vocabulary.
"""

from dataclasses import dataclass, replace

from llama_herd.model.config import LlamaConfig
from llama_herd.model.sizes import FLOAT32_BYTES, attend_bytes, native_prompt_bytes, native_row_bytes
from llama_herd.model.tiling import SHORT_TOKENS
from llama_herd.worker.engine.scheduler import MAX_SCORED_TOKENS

#: Bytes per logit of a row that draws: rules, filters, sorted values with their ids, noise. Measured: 37.
DRAWING_BYTES = 40
#: Bytes of a row that draws by its slot, whose penalties look at all of its positions: per logit, and per
#: position of the longest sequence. Measured: 12 and 58.
COUNTING_BYTES, POSITION_BYTES = 12, 60
#: Bytes per logit of a scored token: its exponential, while these are summed up.
SCORING_BYTES = 4


@dataclass(frozen=True)
class StepMemory:
    """Memory of the largest step: `slots` rows beside `prompt_tokens`, or `alone_tokens` by themselves."""

    config: LlamaConfig
    item_bytes: int  # of a number of the compute dtype
    consecutive: bool  # whether a sequence's pages lie next to each other
    slots: int
    prompt_tokens: int
    alone_tokens: int
    num_threads: int
    is_packed: bool = False  # whether a kernel on a card takes prompts packed

    def activation_bytes(self, cache_tokens: int) -> int:
        """The part of one layer that takes most. No step has more tokens than the cache."""
        H, K, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        C, F, size = self.config.hidden_size, self.config.ffn_size, self.item_bytes
        T = min(self._num_tokens, cache_tokens)
        wide = FLOAT32_BYTES
        family = self.config.family
        qkv = 2 * C + (H + 2 * K) * D * (2 if family.qkv_bias else 1)
        if family.qk_norm:
            qkv += (H + K) * D
        rotating = size * (qkv + (H + K) * D) + (3 if family.qk_norm else 2) * wide * (H + K) * D
        attending = size * (qkv + (H + K) * D + 3 * H * D)
        mlp = size * (5 * C + 4 * F)
        if self.consecutive and size < wide:
            mlp += wide * F  # inputs in float32, where the processor multiplies no bfloat16
        norm = size * (3 if family.post_norms else 2) * C + 3 * wide * C
        rope = 2 * wide * D * (2 if self.config.local_rope_base else 1)
        return T * (rope + max(rotating, attending, mlp, norm))

    def attention_bytes(self, max_length: int) -> int:
        """The larger of `attend` and the copies of a prompt's pages in one layer; and what kernels take."""
        copies = 2 * max_length * self.config.num_kv_heads * self.config.head_dim * self.item_bytes
        sizes = (self.config, self.item_bytes, max_length)
        attending = attend_bytes(*sizes, consecutive=self.consecutive, is_packed=self.is_packed)
        native = 0
        if self.consecutive:
            rows = self.slots * SHORT_TOKENS * native_row_bytes(self.config, max_length)
            native = rows + self.num_threads * native_prompt_bytes(self.config)
        return max(copies, attending) + native

    def logits_bytes(self, max_length: int) -> int:
        """The logits in float32, and their use: first rows draw, then tokens are scored."""
        num_scored, V = min(MAX_SCORED_TOKENS, self._num_tokens), self.config.vocab_size
        drawing = self.slots * self.drawing_bytes(max_length)
        return V * FLOAT32_BYTES * (self.slots + num_scored) + max(drawing, V * SCORING_BYTES * num_scored)

    def drawing_bytes(self, max_length: int) -> int:
        """The bytes that one row takes to draw: filters and noise, or on a GPU its penalties if larger."""
        V = self.config.vocab_size
        penalties = 0 if self.consecutive else V * COUNTING_BYTES + max_length * POSITION_BYTES
        return max(V * DRAWING_BYTES, penalties)

    def graph_bytes(self, max_length: int) -> int:
        """The bytes that overlapping steps add on a GPU: slots, their logits, and the graphs' own pool."""
        from llama_herd.worker.engine.decode_graphs import DecodeGraphs, bucket_of
        from llama_herd.worker.engine.slots import Slots

        rows = bucket_of(self.slots)
        drawing = rows * (self.config.vocab_size * FLOAT32_BYTES + self.drawing_bytes(max_length))
        kept = Slots.num_bytes(self.slots, max_length) + DecodeGraphs.num_bytes(rows, self.config.vocab_size)
        return kept + drawing + replace(self, alone_tokens=rows, prompt_tokens=0).activation_bytes(rows)

    @property
    def _num_tokens(self) -> int:
        return max(self.alone_tokens, self.prompt_tokens + self.slots)
