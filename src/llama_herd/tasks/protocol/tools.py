"""The tools of a job: which ones the model may call, and whether it must call one."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from llama_herd.tasks.protocol.json_values import JsonObject

#: What a choice may be; else it names one tool.
CHOICES = ("none", "auto", "required")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAME_RULE = "must be 1 to 64 letters, digits, dots, underscores or dashes"


def check_tool(tool: JsonObject) -> JsonObject:
    """`tool`, unless it has OpenAI's form and something in it is wrong. Raises ValueError.

    A template may write of tools in a form of its own. These are never taken for called.
    """
    if "type" not in tool:
        return tool
    if tool["type"] != "function":
        raise ValueError("type must be function: tools of other types are not supported")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise ValueError("function must be an object with a name")
    if not _is_name(function.get("name")):
        raise ValueError(f"function.name {_NAME_RULE}")
    if not isinstance(function.get("parameters"), Mapping | bool | None):
        raise ValueError("function.parameters must be a JSON schema")
    if not isinstance(function.get("strict"), bool | None):
        raise ValueError("function.strict must be true or false")
    return tool


def check_tool_choice(given: object) -> str | JsonObject:
    """`given`, if it is OpenAI's `tool_choice`. Raises ValueError."""
    if isinstance(given, str) and given in CHOICES:
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given != {"type": "function", "function": {**function}}:
        raise ValueError(
            f'must be {", ".join(CHOICES)} or {{"type": "function", "function": {{"name": ...}}}}'
        )
    if function.keys() != {"name"} or not _is_name(function["name"]):
        raise ValueError(f"function must have a name and nothing else. It {_NAME_RULE}")
    return {"type": "function", "function": dict(function)}


Tool = Annotated[JsonObject, AfterValidator(check_tool)]
ToolChoice = Annotated[str | JsonObject, BeforeValidator(check_tool_choice)]


def check_choice_among(choice: str | JsonObject, tools: Collection[Mapping[str, Any]]) -> None:
    """Raise ValueError unless there are tools that can be called as the choice says."""
    if choice in ("none", "auto"):
        return
    if not tools:
        raise ValueError("needs tools: there is none to call")
    foreign = next((number for number, tool in enumerate(tools) if not _function(tool)), None)
    if foreign is not None:
        form = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        raise ValueError(f"needs tools of the form {form}, which tools.{foreign} does not have")
    if isinstance(choice, dict) and choice["function"]["name"] not in tool_names(tools):
        raise ValueError("must name one of the tools")


def tool_names(tools: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of the tools that can be called."""
    return tuple(str(function["name"]) for tool in tools if (function := _function(tool)))


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function of a tool in OpenAI's form; empty for a tool in another form."""
    function = tool.get("function")
    return function if tool.get("type") == "function" and isinstance(function, Mapping) else {}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
