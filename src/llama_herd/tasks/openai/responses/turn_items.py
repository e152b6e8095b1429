"""Turns of a chat as items of the Responses API: what an answer was asked."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from llama_herd.tasks.openai.responses.answer import reasoning_part, text_part
from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.protocol.json_values import json_text


class InputItemList(BaseModel):
    """A page of the items that an answer was asked."""

    object: Literal["list"] = Field(default="list", description="A list.")
    data: list[dict[str, Any]] = Field(description="The items, as `input` may have them, each with an `id`.")
    first_id: str | None = Field(description="Id of the first of these; null: there is none.")
    last_id: str | None = Field(description="Id of the last of these, `after` which the next page begins.")
    has_more: bool = Field(description="Whether there are more after these.")

    @classmethod
    def page(
        cls, items: list[dict[str, Any]], after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> Self | None:
        """The page that begins after an item; None if there is none of that id."""
        if order == "desc":
            items = items[::-1]
        ids = [str(item["id"]) for item in items]
        if after is not None and after not in ids:
            return None
        begin = 0 if after is None else ids.index(after) + 1
        told = ids[begin : begin + limit]
        return cls(
            data=items[begin : begin + limit],
            first_id=told[0] if told else None,
            last_id=told[-1] if told else None,
            has_more=begin + limit < len(items),
        )


def input_items(job_id: str, turns: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The items that come to these turns."""
    found = [item for turn in turns for item in _items_of(turn)]
    return [{"id": f"in_{job_id}_{number}", **item} for number, item in enumerate(found)]


def _items_of(turn: ChatMessage) -> Iterator[dict[str, Any]]:
    texts = [turn.content] if isinstance(turn.content, str) else [part.text for part in turn.content or ()]
    is_answer = turn.role == "assistant"
    parts = [text_part(text) if is_answer else {"type": "input_text", "text": text} for text in texts]
    done = {"status": "completed"}
    if turn.role == "tool":
        yield {"type": "function_call_output", "call_id": turn.tool_call_id, "output": parts, **done}
        return
    if turn.reasoning_content:
        thought = [reasoning_part(turn.reasoning_content)]
        yield {"type": "reasoning", "summary": [], "content": thought, **done}
    if turn.content is not None:
        named = {} if turn.name is None else {"name": turn.name}
        yield {"type": "message", "role": turn.role, **named, "content": parts, **done}
    for call in turn.tool_calls or ():
        given = call.get("function")
        function = given if isinstance(given, dict) else {}
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json_text(arguments)
        called = {"call_id": call.get("id"), "name": function.get("name"), "arguments": text}
        yield {"type": "function_call", **called, **done}
