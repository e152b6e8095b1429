"""Floors: the least time that a device needs for a piece of work, by its bandwidth and its arithmetic.

A step reads all weights and all keys and values once, and multiplies each weight once a row. Nothing can be
faster, so measured / floor says how much is left to gain.
"""

from dataclasses import dataclass
from enum import Enum

from llama_herd.model.config import LlamaConfig


class Format(Enum):
    """How a file stores a model, by the name of the preset: bits of a weight, and of one of the output."""

    BF16 = (16.0, 16.0)
    Q8_0 = (8.5, 8.5)
    Q4_0 = (4.5, 6.5625)  # the output is Q6_K
    Q4_K_M = (4.8, 6.5625)  # about: Q6_K are also half of the values and of the down projections

    @property
    def bits(self) -> float:
        return self.value[0]

    @property
    def output_bits(self) -> float:
        return self.value[1]


@dataclass(frozen=True)
class Floors:
    """The floors of one model on one device. Lengths are tokens, times are seconds.

    stored: in which format the weights are, or how many bytes of them a step reads.
    """

    config: LlamaConfig
    stored: Format | int
    bytes_per_s: float
    flop_per_s: float
    kv_value_bytes: int = 2

    @property
    def num_linear(self) -> int:
        """Weights of all layers' matrices."""
        config = self.config
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention = 2 * config.hidden_size * q + 2 * config.hidden_size * kv
        return config.num_layers * (attention + 3 * config.hidden_size * config.ffn_size)

    @property
    def num_output(self) -> int:
        """Weights of the output matrix."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that a step reads: all but the embedding, of which it reads a row a token."""
        if isinstance(self.stored, int):
            return self.stored
        num_norm = (2 * self.config.num_layers + 1) * self.config.hidden_size
        bits = self.num_linear * self.stored.bits + self.num_output * self.stored.output_bits
        return bits / 8 + 2 * num_norm

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that a token adds to the cache."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.kv_value_bytes

    def decode_s(self, num_rows: int, context: float) -> float:
        """One step of `num_rows` sequences that hold `context` tokens each."""
        flop = 2 * num_rows * (self.num_linear + self.num_output)
        products_s = max(self.weight_bytes / self.bytes_per_s, flop / self.flop_per_s)
        return products_s + num_rows * (context + 1) * self.kv_bytes / self.bytes_per_s

    def prefill_flop(self, length: int) -> int:
        """Of one prompt, with logits for its last token alone; attention is causal."""
        config = self.config
        attention = 2 * length * (length + 1) * config.num_layers * config.num_heads * config.head_dim
        return 2 * length * self.num_linear + 2 * self.num_output + attention

    def prefill_s(self, num_prompts: int, length: int) -> float:
        """All prompts of `length` tokens, to their first tokens."""
        compute_s = num_prompts * self.prefill_flop(length) / self.flop_per_s
        num_bytes = self.weight_bytes + num_prompts * length * self.kv_bytes
        return max(compute_s, num_bytes / self.bytes_per_s)

    def saturation_tokens_per_s(self, num_rows: int, num_in: int, num_out: int) -> float:
        """Generated tokens a second while `num_rows` rows stay busy with requests of this kind."""
        decode_s = num_out * self.decode_s(num_rows, num_in + num_out / 2)
        return num_rows * num_out / (decode_s + num_rows * self.prefill_flop(num_in) / self.flop_per_s)
