"""The formats of one model's outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from llama_herd.model.parsers.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
    tokens_in,
)


@dataclass(frozen=True)
class OutputFormats:
    """How a model writes reasoning and calls; None where it does not."""

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None

    @classmethod
    def of(cls, templates: Mapping[str, str]) -> Self:
        """The formats that a model's chat templates, Jinja by name, speak of."""
        text = "\n".join(templates.values())
        reasoning = (
            form for form in REASONING_FORMATS.values() if _all_in(text, form.signs or (form.opening,))
        )
        tools = (
            form
            for form in TOOL_FORMATS.values()
            if _all_in(text, form.signs) and not any(one in text for one in form.lacks)
        )
        return cls(next(reasoning, None), next(tools, None))

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be control tokens: the text of an output has to show them."""
        reasoning = () if self.reasoning is None else self.reasoning.marks
        return tokens_in((*reasoning, *(() if self.tools is None else self.tools.marks)))

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends in the opening mark of reasoning, so that an output goes on there."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.opening)


def _all_in(text: str, signs: tuple[str, ...]) -> bool:
    return all(one in text for one in signs)
