"""Prompts: the long spans of a batch, in the form that a kernel asks for."""

from typing import Protocol

from llama_herd.model.packed import Packed
from llama_herd.model.seen import SeenSpans


class Prompts(Protocol):
    """Each form is made when it is asked for, once for all layers."""

    @property
    def seen_spans(self) -> SeenSpans:
        """Span by span, their keys where the pages lie."""

    @property
    def packed(self) -> tuple[Packed, ...]:
        """Sequence by sequence, their keys one behind the other, in lots."""
