"""Items of OpenAI's Responses API as turns of a chat: the output of an answer may be sent back as it came.

Source: OpenAI's API reference for responses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from llama_herd.errors import MAX_FIELD_ERRORS, FieldError
from llama_herd.tasks.openai.responses.conversation import Conversation

#: Kinds of items that can be told to a model here.
ITEMS = ("message", "function_call", "function_call_output", "reasoning")
#: Fields of items that change nothing: whose they are, and how far they had come.
IGNORED = ("type", "id", "status", "phase", "created_by")
#: Their names of parts, with those that a chat has.
_PARTS = {
    **dict.fromkeys(("input_text", "output_text"), "text"),
    "input_image": "image",
    "input_file": "file",
}
#: In the place of an item's number: the turn is of the conversation before.
BEFORE = -1


class Turns:
    """The turns that a conversation and the items after it come to. places: which item each began with.

    What one answer came to, its reasoning, its message and its calls, is one turn. What is wrong with a turn
    is left in it, for the check of the job; errors: what has no turn.
    """

    def __init__(self, before: Conversation, items: Sequence[Any]) -> None:
        # Only the last may become longer. The others are checked, which takes time, and stay what they are.
        last = [turn.model_dump(mode="json", exclude_none=True) for turn in before.turns[-1:]]
        self.turns: list[Any] = [*before.turns[:-1], *last]
        self.places = [BEFORE] * len(self.turns)
        self.errors: list[FieldError] = []
        for item in before.items:
            self._read(BEFORE, item)
        for number, item in enumerate(items):
            self._read(number, item)
            if len(self.errors) > MAX_FIELD_ERRORS:
                break
        self._drop_thoughts()

    def _read(self, number: int, item: Any) -> None:
        if not isinstance(item, Mapping):
            self.errors.append(FieldError(f"input.{number}", "must be an object"))
            return
        given = {name: value for name, value in item.items() if name not in IGNORED and value is not None}
        match item.get("type") or "message":
            case "message" if item.get("role") == "assistant":
                self._answer(number, "content", _content(given.pop("content", None)), given)
            case "message":
                self._add(number, {**given, "content": _content(given.get("content"))})
            case "reasoning":
                self._answer(number, "reasoning_content", _thoughts(given), {})
            case "function_call":
                call = {name: given.get(name) for name in ("name", "arguments")}
                self._call(number, {"id": given.get("call_id"), "type": "function", "function": call})
            case "function_call_output":
                told = {"tool_call_id": given.get("call_id"), "content": _content(given.get("output"))}
                self._add(number, {"role": "tool", **told})
            case _:
                self.errors.append(FieldError(f"input.{number}.type", f"must be one of {', '.join(ITEMS)}"))

    def _answer(self, number: int, name: str, said: Any, beside: Mapping[str, Any]) -> None:
        """What an answer said or thought: of the last turn, if that is an answer that has not come so far."""
        turn = self._last_answer()
        if turn is None or "tool_calls" in turn or "content" in turn or name in turn:
            turn = {"role": "assistant"}
            self._add(number, turn)
        turn |= {name: said, **beside}

    def _call(self, number: int, call: dict[str, Any]) -> None:
        turn = self._last_answer()
        if turn is None:
            turn = {"role": "assistant"}
            self._add(number, turn)
        turn.setdefault("tool_calls", []).append(call)

    def _add(self, number: int, turn: Any) -> None:
        self._drop_thoughts()
        self.turns.append(turn)
        self.places.append(number)

    def _drop_thoughts(self) -> None:
        """Drop a last turn that only thought: no template takes one."""
        turn = self._last_answer()
        if turn is not None and not turn.keys() & {"content", "tool_calls"}:
            self.turns.pop()
            self.places.pop()

    def _last_answer(self) -> dict[str, Any] | None:
        last = self.turns[-1] if self.turns else {}
        return last if last.get("role") == "assistant" else None


def _content(value: Any) -> Any:
    return list(map(_part, value)) if isinstance(value, list) else value


def _part(part: Any) -> Any:
    """A part by the name that a chat has for it, and without what an answer says beside its text."""
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    beside = ("annotations", "logprobs") if kind == "output_text" else ()
    named = {name: value for name, value in part.items() if name not in beside}
    return {**named, "type": _PARTS.get(kind, kind) if isinstance(kind, str) else kind}


def _thoughts(item: Mapping[str, Any]) -> str:
    """The text of a reasoning, or of its summary where that is all there is."""
    for parts in (item.get("content"), item.get("summary")):
        told = parts if isinstance(parts, list) else []
        texts = [part.get("text") for part in told if isinstance(part, Mapping)]
        if found := "\n".join(text for text in texts if isinstance(text, str)):
            return found
    return ""
