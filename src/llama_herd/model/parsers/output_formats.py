"""The formats of one model's outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from llama_herd.model.parsers.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
    tokens_in,
)

#: In place of a format's name: the one that the templates speak of, or none.
AUTO = "auto"
NONE = "none"


class _Format(Protocol):
    def is_told_by(self, template: str) -> bool: ...


F = TypeVar("F", bound=_Format)


@dataclass(frozen=True)
class OutputFormats:
    """How a model writes reasoning and calls; None where it does not."""

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None

    @classmethod
    def from_templates(cls, templates: Mapping[str, str], tools: str = AUTO, reasoning: str = AUTO) -> Self:
        """The formats of these names, or those that a model's chat templates, Jinja by name, speak of."""
        texts = tuple(templates.values())
        return cls(_chosen(REASONING_FORMATS, reasoning, texts), _chosen(TOOL_FORMATS, tools, texts))

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be control tokens: the text of an output has to show them."""
        reasoning = () if self.reasoning is None else self.reasoning.marks
        return tokens_in((*reasoning, *(() if self.tools is None else self.tools.marks)))

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends in the opening mark of reasoning, so that an output goes on there."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.opening)

    def ends_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends in the closing mark of reasoning, so that none comes."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.closing)


def _chosen(formats: Mapping[str, F], name: str, templates: tuple[str, ...]) -> F | None:
    if name in (AUTO, NONE):
        told = (form for form in formats.values() if any(map(form.is_told_by, templates)))
        return next(told, None) if name == AUTO else None
    return formats[name]
