"""OpenAI's choice among some of the tools: the others are as if they were not sent."""

from collections.abc import Mapping, Sequence
from typing import Any

ALLOWED = "allowed_tools"
MODES = ("auto", "required")


def is_among_some(choice: Any) -> bool:
    """Whether a `tool_choice` is one among some of the tools."""
    return isinstance(choice, Mapping) and choice.get("type") == ALLOWED


def among_some(choice: Mapping[str, Any], tools: Sequence[Any]) -> tuple[str, list[Any]]:
    """What the choice is, and the tools among which it is one. Raises ValueError."""
    given = choice.get(ALLOWED)
    if choice.keys() != {"type", ALLOWED} or not isinstance(given, Mapping):
        raise ValueError(f'of the type {ALLOWED} must have "{ALLOWED}": {{...}}, and nothing else')
    mode, allowed = given.get("mode"), given.get("tools")
    if given.keys() != {"mode", "tools"} or mode not in MODES or not isinstance(allowed, list):
        raise ValueError(f"{ALLOWED} must have the mode {' or '.join(MODES)}, and a list of tools")
    known = {name for tool in tools if (name := _name_of(tool))}
    unknown = next((number for number, one in enumerate(allowed) if _name_of(one) not in known), None)
    if unknown is not None:
        form = '{"type": "function", "function": {"name": ...}}'
        raise ValueError(f"{ALLOWED}.tools.{unknown} must be {form}, and name one of the tools")
    names = set(map(_name_of, allowed))
    return mode, [tool for tool in tools if _name_of(tool) in names]


def _name_of(tool: Any) -> str:
    """The name of a tool in OpenAI's form; empty for what is none."""
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""
