"""Requests and answers of the Responses API as they are here, for the gateway's description.

Answers and their events are written as they come, and tests hold them to these classes.
"""

from typing import Any, Literal

from pydantic import Field

from llama_herd.tasks.openai.answer_schema import AnswerModel, DrawnScore
from llama_herd.tasks.openai.body_schema import body_schema, ignored
from llama_herd.tasks.openai.request_body import CHAT
from llama_herd.tasks.openai.responses.answer import Status
from llama_herd.tasks.openai.responses.body import CHAT_FIELDS, OWN_NEUTRAL, PREVIOUS, REASONING, SCORES
from llama_herd.tasks.openai.responses.input_items import IGNORED, ITEMS
from llama_herd.tasks.protocol.chat import MAX_MESSAGES
from llama_herd.tasks.protocol.job import GenerationJob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
_ITEM_STATUS = Field(description="Whether it has come whole.")


class OutputText(AnswerModel):
    """A text that the model said."""

    type: Literal["output_text"] = Field(description="Kind of the part.")
    text: str = Field(description="The text.")
    annotations: tuple[()] = Field(description="Always empty.")
    logprobs: tuple[DrawnScore, ...] = Field(
        description="The scores of all tokens of the answer; empty unless asked for."
    )


class ReasoningText(AnswerModel):
    """A text that the model thought."""

    type: Literal["reasoning_text"] = Field(description="Kind of the part.")
    text: str = Field(description="The text.")


class MessageItem(AnswerModel):
    """What the model said."""

    type: Literal["message"] = Field(description="Kind of the item.")
    id: str = Field(description="Id of the item.")
    status: ItemStatus = _ITEM_STATUS
    role: Literal["assistant"] = Field(description="Who speaks.")
    content: tuple[OutputText, ...] = Field(description="One part; none while nothing has come.")


class ReasoningItem(AnswerModel):
    """What the model thought before, told as it is."""

    type: Literal["reasoning"] = Field(description="Kind of the item.")
    id: str = Field(description="Id of the item.")
    status: ItemStatus = _ITEM_STATUS
    summary: tuple[()] = Field(description="Always empty: the whole is in `content`.")
    content: tuple[ReasoningText, ...] = Field(description="One part; none while nothing has come.")


class CallItem(AnswerModel):
    """A call of a tool that the model asks for."""

    type: Literal["function_call"] = Field(description="Kind of the item.")
    id: str = Field(description="Id of the item.")
    call_id: str = Field(description="Names the call in the item that answers it.")
    name: str = Field(description="Name of the tool.")
    arguments: str = Field(description="Its arguments: the text of a JSON object.")
    status: ItemStatus = _ITEM_STATUS


Item = MessageItem | ReasoningItem | CallItem


class InputDetails(AnswerModel):
    """More about the tokens of the input."""

    cached_tokens: int = Field(description="How many came from a worker's prefix cache; 0: or not counted.")
    cache_write_tokens: int = Field(description="Always 0: nobody counts them.")


class OutputDetails(AnswerModel):
    """More about the tokens of the output."""

    reasoning_tokens: int = Field(description="Always 0: nobody counts them.")


class ResponseUsage(AnswerModel):
    """Number of tokens of the input and of the output."""

    input_tokens: int = Field(description="Tokens of the input.")
    input_tokens_details: InputDetails = Field(description="More about these.")
    output_tokens: int = Field(description="Tokens of the output, with its reasoning and calls.")
    output_tokens_details: OutputDetails = Field(description="More about these.")
    total_tokens: int = Field(description="Both together.")


class ResponseFailure(AnswerModel):
    """Why there is no answer."""

    code: Literal["invalid_prompt", "server_error"] = Field(description="OpenAI's: whose fault it is.")
    message: str = Field(description="What went wrong, in a sentence.")
    type: str = Field(description="Our code of the error.")


class IncompleteDetails(AnswerModel):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"] = Field(description="What was used up: this, or the context.")


_ASKED = "As it was asked; of an answer that is read later"


class ResponseObject(AnswerModel):
    """An answer. What it repeats of the request stands only where that is answered."""

    id: str = Field(description="resp_, and the id of the job.")
    object: Literal["response"] = Field(description="Type of this object.")
    created_at: int = Field(description="When it was asked for, in seconds since 1970.")
    status: Status = Field(description="How far it has come.")
    error: ResponseFailure | None = Field(description="What went wrong, if it has failed.")
    incomplete_details: IncompleteDetails | None = Field(description="Why it is not whole.")
    model: str | None = Field(description="The model that was asked.")
    output: tuple[Item, ...] = Field(description="What came of it; empty until it has ended.")
    usage: ResponseUsage | None = Field(description="Tokens of the whole job; null until it has ended.")
    previous_response_id: str | None = Field(description=f"{_ASKED} null.")
    background: bool = Field(description=f"{_ASKED} false.")
    instructions: str | None = Field(description=f"{_ASKED} null.")
    max_output_tokens: int | None = Field(description=f"{_ASKED} null.")
    metadata: dict[str, str] = Field(description=f"{_ASKED} empty.")
    parallel_tool_calls: bool = Field(description=f"{_ASKED} true.")
    reasoning: dict[str, Any] = Field(description=f"{_ASKED} without an effort.")
    store: bool = Field(description=f"{_ASKED} true.")
    temperature: float | None = Field(description=f"{_ASKED} null.")
    text: dict[str, Any] = Field(description=f"{_ASKED} of the type text.")
    tool_choice: str | dict[str, Any] = Field(description=f"{_ASKED} auto.")
    tools: tuple[dict[str, Any], ...] = Field(description=f"{_ASKED} empty.")
    top_logprobs: int = Field(description=f"{_ASKED} 0.")
    top_p: float | None = Field(description=f"{_ASKED} null.")
    truncation: Literal["disabled"] = Field(description="Nothing is left out of a conversation.")


class ResponseEvent(AnswerModel):
    """An event of a stream. Which fields it has beside the first two follows from its type."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ] = Field(description="What it tells of.")
    sequence_number: int = Field(description="Number of the event, dense from 0: a reader goes on behind it.")
    response: ResponseObject | None = Field(default=None, description="The answer as it is then.")
    output_index: int | None = Field(default=None, description="Which of the items.")
    item_id: str | None = Field(default=None, description="Id of this item.")
    item: Item | None = Field(default=None, description="The item as it is then.")
    content_index: int | None = Field(default=None, description="Which of its parts: always the first.")
    part: OutputText | ReasoningText | None = Field(default=None, description="The part as it is then.")
    delta: str | None = Field(default=None, description="The next piece of a text, or the arguments.")
    text: str | None = Field(default=None, description="The whole text.")
    logprobs: tuple[DrawnScore, ...] | None = Field(
        default=None, description="The scores that were not told before; at the end of a text all of them."
    )
    name: str | None = Field(default=None, description="Name of the tool.")
    arguments: str | None = Field(default=None, description="The whole arguments.")


_TEXT = {"type": "string"}
_TURN = {
    "type": "object",
    "properties": {
        "type": {"enum": list(ITEMS), "description": "Kind of the item; absent: message."},
        "role": {"description": "Who speaks in a message: user, assistant, system or developer."},
        "content": {
            "description": "What is said, or thought: a text, or parts of the type `input_text`, "
            "`output_text` or `reasoning_text`."
        },
        "summary": {"description": "Of a reasoning, where it has no content."},
        "call_id": {**_TEXT, "description": "Names a call, and what answers it."},
        "name": {**_TEXT, "description": "Name of the tool that is called."},
        "arguments": {**_TEXT, "description": "What it is called with: the text of a JSON object."},
        "output": {"description": "What answers a call: a text, or parts of one."},
        **{name: {"description": "Ignored."} for name in IGNORED if name != "type"},
    },
}


def response_schema() -> dict[str, Any]:
    """All fields that a body may have. Others are refused by name."""
    chat = body_schema(CHAT)["properties"]
    job = GenerationJob.model_json_schema()["properties"]
    stream = {**chat["stream_options"], "properties": {"include_obfuscation": {"const": False}}}
    fields = {
        "model": chat["model"],
        "input": {
            "anyOf": [_TEXT, {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": _TURN}],
            "description": "What is asked: a text, or the items of a conversation.",
        },
        "instructions": {
            **_TEXT,
            "description": "A turn of the role system, before all others, for this answer alone.",
        },
        PREVIOUS: {
            **_TEXT,
            "description": "The answer that this one goes on from: what that was asked, and what it said, "
            "stands before `input`.",
        },
        "max_output_tokens": chat["max_tokens"],
        "stream": chat["stream"],
        "stream_options": stream,
        "background": {
            "type": "boolean",
            "default": False,
            "description": "Answer at once, and go on without the client: the answer is read later.",
        },
        "priority": chat["priority"],
        "metadata": job["metadata"],
        "text": _object(
            {"format": chat["response_format"], "verbosity": chat["verbosity"]}, "The output's form."
        ),
        "reasoning": _object(
            {"effort": chat["reasoning_effort"], **{k: ignored(v) for k, v in REASONING.items()}},
            "How much to think.",
        ),
        "include": {
            "type": "array",
            "items": _TEXT,
            "description": f"`{SCORES}`: the scores of all tokens. Others change nothing.",
        },
        "top_logprobs": chat["top_logprobs"],
        "tools": chat["tools"],
        "tool_choice": {"description": "auto, none, required, a tool's name, or a choice among some."},
        **{name: chat[name] for name in sorted(CHAT_FIELDS - {"model"})},
    }
    neutral = {name: ignored(one) for name, one in OWN_NEUTRAL.items() if name not in fields}
    properties = fields | dict(sorted(neutral.items()))
    return {"type": "object", "required": ["input"], "additionalProperties": False, "properties": properties}


def _object(parts: dict[str, Any], what: str) -> dict[str, Any]:
    return {"type": "object", "properties": parts, "additionalProperties": False, "description": what}
