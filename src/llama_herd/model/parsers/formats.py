"""How models write their reasoning and their calls of tools."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningFormat:
    """Reasoning stands between two marks, at the beginning of an output."""

    name: str
    opening: str
    closing: str


@dataclass(frozen=True)
class ToolFormat:
    """Calls stand behind an opening mark."""

    name: str
    openings: tuple[str, ...]
    closings: tuple[str, ...] = ()


THINK = ReasoningFormat("think", "<think>", "</think>")
HERMES = ToolFormat("hermes", ("<tool_call>",), ("</tool_call>",))

REASONING_FORMATS = {form.name: form for form in (THINK,)}
TOOL_FORMATS = {form.name: form for form in (HERMES,)}
