"""Kernels with the faces of a GPU's, in plain torch."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.kernels.exact import attend_plainly, tokens_of
from llama_herd.model.llama2 import Llama


@dataclass
class PlainShort:
    """The kernel for tokens that decode, in plain torch."""

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return True

    def __call__(self, q: Tensor, cached: Tensor, seen: Seen, out: Tensor, scoring: Scoring) -> None:
        if len(seen.rows):
            out[seen.rows] = attend_plainly(q, cached, seen, scoring)


@dataclass
class PlainSpans:
    """The kernel for prompts, in plain torch; notes what it was given."""

    given: list[SeenSpans] = field(default_factory=list)

    def takes(self, q: Tensor, cached: Tensor) -> bool:
        return True

    def __call__(self, q: Tensor, cached: Tensor, spans: SeenSpans, out: Tensor, scoring: Scoring) -> None:
        self.given.append(spans)
        PlainShort()(q, cached, tokens_of(spans), out, scoring)


def with_plain_kernels(llama: Llama) -> tuple[Llama, PlainSpans]:
    """A model whose attention is that of a GPU, and its kernel for prompts."""
    prompts = PlainSpans()
    blocks = tuple(
        replace(block, attention=replace(block.attention, native=PlainShort(), prefill=prompts))
        for block in llama.blocks
    )
    return replace(llama, blocks=blocks), prompts
