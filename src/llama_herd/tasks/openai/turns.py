"""Turns as OpenAI's clients hold them, in our form: an answer may be sent back as it came."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llama_herd.tasks.protocol.json_values import check_json

#: Fields of an answer that our turns lack, each with what is done with it.
ANSWER_FIELDS: Mapping[str, str] = {
    "refusal": "Counts as something that was said.",
    "audio": "Its `transcript` counts as what was said if there is no other content.",
    "function_call": "A call as it was written before there was `tool_calls`.",
    "reasoning": "vLLM's name of `reasoning_content`.",
    "annotations": "Ignored.",
    "content_parts": "Ignored.",
    "id": "Ignored.",
    "parsed": "Ignored: `content` has its text.",
}
_IGNORED = frozenset(name for name, told in ANSWER_FIELDS.items() if told.startswith("Ignored"))


def job_turns(turns: Sequence[Any]) -> list[Any]:
    """The turns in our form. What is wrong with one is left in it, for the check of the job."""
    found, call_id = list[Any](), ""
    for number, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            found.append(turn)
            continue
        told = {name: value for name, value in turn.items() if value is not None}
        if told.get("role") == "assistant":
            if "function_call" in told:
                call_id = f"call{number:05}"  # of the length that some templates ask for
            told = _answer(told, call_id)
        elif told.get("role") == "function":  # the answer to a `function_call`
            told = {"content": "", **told, "role": "tool", "tool_call_id": call_id}
        if isinstance(content := told.get("content"), list):
            told["content"] = [_part(part) for part in content]
        if told.get("role") == "assistant":
            told |= {name: _said(told[name]) for name in ("content", "reasoning_content") if name in told}
        found.append(told)
    return found


def _answer(turn: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    """A turn of the assistant. call_id: of a call that has none."""
    found = {name: value for name, value in turn.items() if name not in _IGNORED}
    if "reasoning" in found:
        found.setdefault("reasoning_content", found.pop("reasoning"))
    if isinstance(function := found.pop("function_call", None), Mapping):
        found.setdefault("tool_calls", [{"id": call_id, "type": "function", "function": function}])
    if isinstance(calls := found.get("tool_calls"), list):
        found["tool_calls"] = [_call(call) for call in calls]
        if not calls:
            del found["tool_calls"]
    audio = found.pop("audio", None)
    if isinstance(refusal := found.get("refusal"), str):
        del found["refusal"]
        found["content"] = _with_refusal(found.get("content"), refusal)
    if isinstance(audio, Mapping) and isinstance(said := audio.get("transcript"), str):
        found["content"] = found.get("content") or said
    return found


def _said(value: Any) -> Any:
    """A text, or parts, without the NUL that a model may write and no job may have."""
    if isinstance(value, list):
        return [{**part, "text": _said(part.get("text"))} if _is_text(part) else part for part in value]
    return value.replace("\0", "") if isinstance(value, str) else value


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _with_refusal(content: Any, refusal: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": refusal}]
    return f"{content}\n{refusal}" if content and isinstance(content, str) else refusal


def _part(part: Any) -> Any:
    """A part of a content as a text, if it is one; where a prompt's cache may end is no matter here."""
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "refusal" and part.keys() == {"type", "refusal"}:
        return {"type": "text", "text": part["refusal"]}
    return _without(part, ("prompt_cache_breakpoint",)) if _is_text(part) else part


def _call(call: Any) -> Any:
    """A call whose arguments are an object, which OpenAI writes as the text of one."""
    if not isinstance(call, Mapping):
        return call
    call = _without(call, ("index",))
    custom, function = call.get("custom"), call.get("function")
    if call.get("type") == "custom" and isinstance(custom, Mapping):
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {**_without(call, ("custom",)), "type": "function", "function": function}
    if not isinstance(function, Mapping):
        return call
    function = _without(function, ("parsed_arguments",))
    return {**call, "function": {**function, **_parsed_arguments(function.get("arguments"))}}


def _parsed_arguments(text: Any) -> dict[str, Any]:
    """The arguments as an object; nothing if they are not the text of one that a job may have.

    A model may write more than a job takes, such as half a pair of surrogates or a number of 80 bits.
    """
    try:
        arguments = json.loads(text) if isinstance(text, str) else None
        if isinstance(arguments, dict):
            check_json([{"function": {"arguments": arguments}}])  # as deep as in a job
            return {"arguments": arguments}
    except (ValueError, RecursionError):
        pass
    return {}


def _without(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}
