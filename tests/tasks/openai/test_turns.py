"""Every message that OpenAI's own types can hold, sent as the next turn."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.tasks.openai.answer_schema import ChatAnswerMessage, ChatDelta
from llama_herd.tasks.openai.request_body import CHAT, RequestBody
from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.settings import Settings
from tests.openai_types import fields_of, required_of, values_of, variants_of

Turn = dict[str, Any]

USER: Turn = {"role": "user", "content": "hi"}
#: What a worker without eyes and ears refuses by its name.
MEDIA = {"image_url", "input_audio", "file"}
#: Fields that say something by themselves.
SPEAKING = {"content", "refusal", "tool_calls", "function_call"}


def answer_types() -> list[Any]:
    """What we answer, and what a client holds of one: whole, parsed, stored, put together from a stream."""
    from openai.types.chat import (
        ChatCompletionMessage,
        ChatCompletionStoreMessage,
        ParsedChatCompletionMessage,
    )
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

    theirs = [ChatCompletionMessage, ParsedChatCompletionMessage, ChatCompletionStoreMessage, ChoiceDelta]
    return [ChatAnswerMessage, ChatDelta, *theirs]


def param_types() -> list[Any]:
    from openai.types.chat import ChatCompletionMessageParam

    return variants_of(ChatCompletionMessageParam)


def job_turn(turn: Turn) -> ChatMessage:
    """The turn as a job has it. Raises InvalidJob."""
    messages = RequestBody(CHAT, {"messages": [USER, turn, USER]}).job(Settings()).messages
    assert messages is not None
    return messages[1]


def part_kinds(turn: Turn) -> set[str]:
    content = turn.get("content")
    return {part["type"] for part in content} if isinstance(content, list) else set()


def every_message() -> Iterator[Turn]:
    """Of each type, with all fields set, and with all but one."""
    for kind in [*answer_types(), *param_types()]:
        for turn in values_of(kind):
            turn = turn | ({"role": "assistant"} if kind in answer_types() else {})
            yield turn
            for name in fields_of(kind).keys() - required_of(kind) - {"role"}:
                yield {other: value for other, value in turn.items() if other != name}


@pytest.mark.long
def test_what_a_client_can_hold_is_taken_as_the_next_turn() -> None:
    num_taken = num_media = 0
    for turn in every_message():
        says = {name for name in SPEAKING if turn.get(name) is not None}
        says |= {"audio"} if (turn.get("audio") or {}).get("transcript") else set()
        if media := part_kinds(turn) & MEDIA:
            with pytest.raises(InvalidJob, match=f"parts of type {media.pop()} are not supported"):
                job_turn(turn)
            num_media += 1
        elif turn["role"] == "function" or says:
            found = job_turn(turn)
            assert found.role == ("tool" if turn["role"] == "function" else turn["role"])
            num_taken += 1
        else:
            with pytest.raises(InvalidJob, match="must have content"):
                job_turn(turn)
    assert num_taken > 80
    assert num_media > 2


@pytest.mark.long
def test_no_word_of_a_turn_is_lost() -> None:
    """Each text that is set has words of its own; ids, notes on sources and data of a voice are no words."""
    unsaid = {"id", "annotations", "data", "file", "type", "role", "parsed", "content_parts"}

    def with_own_words(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {name: with_own_words(part, f"{path}.{name}") for name, part in value.items()}
        if isinstance(value, list):
            return [with_own_words(part, f"{path}.{number}") for number, part in enumerate(value)]
        return f"said{path}" if value == "text" and path.rpartition(".")[2] != "type" else value

    def words(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for name, part in value.items():
                if name not in unsaid:
                    yield from words(part)
        elif isinstance(value, list):
            for part in value:
                yield from words(part)
        elif isinstance(value, str) and value.startswith("said"):
            yield value

    for turn in every_message():
        told = with_own_words(turn, "")
        if part_kinds(turn) & MEDIA:
            continue
        if told.get("tool_calls") is not None:
            told.pop("function_call", None)  # one form of the same
        if told.get("content") or told.get("refusal"):
            told.pop("audio", None)  # the voice of the same
        try:
            found = " ".join(job_turn(told).texts)
        except InvalidJob:
            continue
        assert [word for word in words(told) if word not in found] == []


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"content": None, "refusal": "no"}, {"content": "no"}),
        ({"content": "", "refusal": "no", "annotations": []}, {"content": "no"}),
        ({"content": "well,", "refusal": "no"}, {"content": "well,\nno"}),
        ({"content": None, "audio": {"id": "a", "transcript": "hm"}}, {"content": "hm"}),
        ({"content": "x", "audio": {"id": "a"}, "id": "msg", "tool_calls": []}, {"content": "x"}),
        (
            {"content": "x", "refusal": None, "parsed": {"a": 1}, "reasoning": "hm"},
            {"reasoning_content": "hm"},
        ),
    ],
)
def test_an_answer_is_kept_as_what_was_said(fields: Turn, kept: Turn) -> None:
    found = job_turn({"role": "assistant", **fields}).model_dump(exclude_none=True)
    assert found == {"role": "assistant", "content": "x", **kept}


def test_a_function_is_answered_under_the_id_of_its_call() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}}
    turns = [USER, called, {"role": "function", "name": "f", "content": "2"}, USER]
    found = RequestBody(CHAT, {"messages": turns}).job(Settings()).messages
    assert found is not None
    function = {"name": "f", "arguments": {"x": 1}}
    assert found[1].tool_calls == ({"id": "call00001", "type": "function", "function": function},)
    assert (found[2].role, found[2].tool_call_id, found[2].content) == ("tool", "call00001", "2")


def test_a_call_of_a_stream_or_of_another_kind_is_one_of_a_function() -> None:
    streamed = {"index": 0, "id": "a", "type": "function"}
    calls = [
        {**streamed, "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}},
        {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}},
    ]
    found = job_turn({"role": "assistant", "content": None, "tool_calls": calls}).tool_calls
    assert json.loads(json.dumps(found)) == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": {"input": "x"}}},
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        *(r'{"x": "\ud83d"}', r'{"x": "\u0000"}', r'{"\udc00": 1}', '{"x": 1e999}', f'{{"x": {2**64}}}'),
        '{"x": ' + "[" * 40 + "]" * 40 + "}",
    ],
)
def test_a_call_with_arguments_that_no_job_may_have_is_sent_back_as_it_came(arguments: str) -> None:
    """A model may write so, and is told as it wrote. Else the conversation could not go on."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert job_turn({"role": "assistant", "content": None, "tool_calls": [call]}).tool_calls == (call,)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": "x", "refusal": 5},
        {"role": "assistant", "content": "x", "colour": 5},
        {"role": "user", "content": "x", "refusal": "no"},
        {"role": "user", "content": "x", "annotations": []},
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": 5}]},
        {"role": "assistant", "function_call": 5},
        {"role": ["assistant"], "content": "x"},
    ],
)
def test_what_no_turn_can_have_is_refused(turn: Turn) -> None:
    with pytest.raises(InvalidJob, match=r"messages\.1"):
        job_turn(turn)


def test_a_text_of_a_model_comes_back_without_what_no_job_may_have() -> None:
    """A model may write the byte 0, and a client sends that in each turn from then on."""
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\u0000"}'}}]
    turn = {"role": "assistant", "content": "a\0b", "reasoning_content": "\0c", "tool_calls": calls}
    found = job_turn(turn)
    assert (found.content, found.reasoning_content) == ("ab", "c")
    parts = [{"type": "text", "text": "a\0b"}, {"type": "refusal", "refusal": "\0c"}]
    assert job_turn({"role": "assistant", "content": parts}).texts == ("ab", "c")
    with pytest.raises(InvalidJob, match="NUL"):
        job_turn({"role": "user", "content": "a\0b"})
