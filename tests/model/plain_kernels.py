"""Kernels with the faces of a GPU's, in plain torch."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from llama_herd.model.attention_inputs import Packed, Prompts, Scoring, Seen
from llama_herd.model.kernels.gpu.plain import attend_packed_plainly, attend_plainly
from llama_herd.model.llama2 import Llama


@dataclass
class PlainShort:
    """The kernel for tokens that decode, in plain torch."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return True

    def __call__(self, q: Tensor, cached: Tensor, seen: Seen, out: Tensor, scoring: Scoring) -> None:
        out[seen.rows] = attend_plainly(q, cached, seen, scoring)


@dataclass
class PlainPacked:
    """The kernel for prompts, in plain torch; notes what it was given."""

    given: list[Packed] = field(default_factory=list)

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return True

    def __call__(self, q: Tensor, cached: Tensor, prompts: Prompts, out: Tensor, scoring: Scoring) -> None:
        for packed in prompts.packed:
            self.given.append(packed)
            keys, values = packed.keys_and_values(cached)
            rows = packed.rows
            out[rows] = attend_packed_plainly(q[rows], keys, values, packed, scoring)


def with_plain_kernels(llama: Llama) -> tuple[Llama, PlainPacked]:
    """A model whose attention is that of a GPU, and its kernel for prompts."""
    prompts = PlainPacked()
    blocks = tuple(
        replace(block, attention=replace(block.attention, native=PlainShort(), prefill=prompts))
        for block in llama.blocks
    )
    return replace(llama, blocks=blocks), prompts
