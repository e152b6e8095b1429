"""Events as the chunks of an OpenAI stream."""

import json
from typing import Any

import pytest

from llama_herd.tasks.openai.answer_schema import ChatCompletionChunk, Completion
from llama_herd.tasks.openai.chunks import Chunks
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS, ENDPOINTS, Endpoint
from llama_herd.tasks.openai.response import response_frame
from llama_herd.tasks.protocol.events import End, Event, Started, Token, ToolCall, Usage
from llama_herd.tasks.protocol.result import Result

COMMON: dict[str, Any] = {"job": "j", "epoch": 1}
USAGE = Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5)


def started(n: int = 1, **fields: Any) -> Started:
    return Started(at_ms=1, seq=1, attempt=1, worker="w", model="m", seed=7, n=n, **COMMON, **fields)


def token(seq: int, text: str, *ids: int, **fields: Any) -> Token:
    return Token(seq=seq, i=0, ids=ids or (seq,), text=text, **COMMON, **fields)


def end(seq: int, **fields: Any) -> End:
    return End(seq=seq, n=2, usage=USAGE, attempts=1, **{"finish_reason": "stop", **COMMON, **fields})


def chunks(endpoint: Endpoint, *events: Event, **asked: bool) -> list[dict[str, Any]]:
    """The chunks, which are as the API's description says."""
    made = Chunks(endpoint, "j", "tales", **asked)
    found = [chunk for event in events for chunk in made.from_event(event)]
    described = ChatCompletionChunk if endpoint == CHAT else Completion
    for chunk in found:
        described.model_validate_json(json.dumps(chunk), strict=True)
    return found


def test_a_chat_says_who_speaks_then_the_text_then_why_it_ended() -> None:
    found = chunks(CHAT, started(), token(2, "Hel"), token(3, "lo"), end(4, stop_reason="END"))
    choices = [chunk["choices"][0] for chunk in found]
    assert [one["delta"] for one in choices] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [one["finish_reason"] for one in choices] == [None, None, None, "stop"]
    assert choices[-1]["stop_reason"] == "END"
    assert {chunk["id"] for chunk in found} == {"chatcmpl-j"}
    assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_fingerprint_tells_the_weights_of_each_worker_that_told_them(endpoint: Endpoint) -> None:
    def told(*events: Event) -> list[str]:
        """The fingerprints of the chunks, each once, and that of the whole answer."""
        whole = response_frame(endpoint, "j", "tales", Result.from_events(events))
        both = [*chunks(endpoint, *events), whole]
        return list(dict.fromkeys(one["system_fingerprint"] for one in both))

    [ours] = told(started(), token(2, "Hello"), end(3))
    first, later = (started(weights_digest=digest) for digest in ("00ff", "11ee"))
    assert told(first, token(2, "Hello"), end(3)) == [f"{ours}-00ff"]
    later = later.model_copy(update={"seq": 3, "attempt": 2})
    mixed = told(first, token(2, "Hel"), later, token(4, "lo"), end(5))
    assert mixed == [f"{ours}-00ff", f"{ours}-11ee", f"{ours}-00ff-11ee"]


def test_a_call_is_one_delta_and_reasoning_comes_as_it_is_thought() -> None:
    calls = tuple(ToolCall(index=n, id=f"id{n}", name="f", arguments="{}") for n in range(2))
    found = chunks(
        CHAT,
        started(),
        token(2, "<think>h", reasoning="h", content=""),
        token(3, "m</think>", reasoning="m", content=""),
        token(4, "<tool_call>", content=""),
        token(5, "...", content="so", tool_calls=calls[:1]),
        token(6, "...", content="", tool_calls=calls[1:]),
        end(7),
    )
    choices = [chunk["choices"][0] for chunk in found]
    called = [
        {"index": n, "id": f"id{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for n in range(2)
    ]
    assert [one["delta"] for one in choices[1:]] == [
        {"reasoning_content": "h"},
        {"reasoning_content": "m"},
        {"content": "so", "tool_calls": called[:1]},
        {"tool_calls": called[1:]},
        {},
    ]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_completion_is_its_text() -> None:
    found = chunks(COMPLETIONS, started(), token(2, "Hel"), token(3, "lo"), end(4, finish_reason="length"))
    assert [one["choices"][0]["text"] for one in found] == ["Hel", "lo", ""]
    assert found[-1]["choices"][0]["finish_reason"] == "length"
    assert found[0]["object"] == "text_completion"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_last_tokens_of_one_of_several_outputs_are_one_chunk_with_its_end(endpoint: Endpoint) -> None:
    """Who is cut off behind a chunk goes on behind its event, so no chunk may be a part of one."""
    made = Chunks(endpoint, "j", "tales")
    events = (started(2), token(2, "a"), token(3, "b", choice=1, finish_reason="length"))
    *_, found = (list(made.from_event(event)) for event in events)
    (choice,) = found[0]["choices"]
    assert (len(found), choice["index"], choice["finish_reason"]) == (1, 1, "length")
    assert choice.get("text", choice.get("delta")) in ("b", {"content": "b"})


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_usage_comes_last_and_only_if_asked_for(endpoint: Endpoint) -> None:
    events = (started(), token(2, "a"), end(3))
    assert all("usage" not in chunk for chunk in chunks(endpoint, *events))
    found = chunks(endpoint, *events, has_usage=True)
    assert (found[-1]["choices"], found[-1]["usage"]) == ([], USAGE.model_dump())
    assert all(chunk["usage"] is None for chunk in found[:-1])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_chunk_counts_its_output_s_tokens_so_far_if_asked_for(endpoint: Endpoint) -> None:
    """Also those whose text is withheld: a later chunk brings it."""
    silent, last = token(3, "", 5, 6), {"finish_reason": "stop"}
    events = (token(2, "a"), silent, token(4, "b", 7, choice=1), token(5, "c", 8, **last), end(6))
    counting = {"has_usage": True, "has_counts": True}
    found = chunks(endpoint, started(2, prompt_tokens=3), *events, **counting)
    *pieces, whole = found
    told = [(one["choices"][0]["index"], one["usage"]) for one in pieces]
    counts = [(index, usage["completion_tokens"]) for index, usage in told]
    begun = [(0, 1), (1, 0)] if endpoint == CHAT else []
    assert counts == [*begun, (0, 1), (1, 1), (0, 4), (1, 1)]
    assert all(usage["prompt_tokens"] == 3 for _, usage in told)
    assert all(usage["total_tokens"] == 3 + usage["completion_tokens"] for _, usage in told)
    assert whole["usage"] == USAGE.model_dump()
    uncounted = chunks(endpoint, started(2), *events, **counting)
    assert all(one["usage"] is None for one in uncounted[:-1])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_usage_tells_what_the_first_attempt_found_in_the_cache(endpoint: Endpoint) -> None:
    first = started().model_copy(update={"cached_tokens": 2})
    again = first.model_copy(update={"seq": 3, "attempt": 2, "cached_tokens": 3})
    found = chunks(endpoint, first, token(2, "a"), again, token(4, "b"), end(5), has_usage=True)
    assert found[-1]["usage"] == {**USAGE.model_dump(), "prompt_tokens_details": {"cached_tokens": 2}}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_of_several_outputs_ends_once(endpoint: Endpoint) -> None:
    """Also one that has said nothing."""
    last = {"finish_reason": "length", "stop_reason": "max_tokens"}
    found = chunks(endpoint, started(3), token(2, "a", choice=1, **last), token(3, "b", choice=0), end(4))
    choices = [chunk["choices"][0] for chunk in found]
    ends = {one["index"]: one["finish_reason"] for one in choices if one["finish_reason"]}
    assert ends == {0: "stop", 1: "length", 2: "stop"}
    assert sum(one["finish_reason"] is not None for one in choices) == 3


def test_openai_s_client_adds_up_several_outputs_in_whatever_order_they_begin() -> None:
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk as ChatChunk

    events = (token(2, "c", choice=2), token(3, "a", choice=0), token(4, "b", choice=1), end(5))
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks(CHAT, started(3), *events):
        state.handle_chunk(ChatChunk.model_validate(chunk))
    choices = state.get_final_completion().choices
    assert [(one.index, one.message.content) for one in choices] == [(0, "a"), (1, "b"), (2, "c")]


def test_scores_come_with_their_tokens_though_no_character_is_whole() -> None:
    scored = {"logprobs": (-0.5,), "top_logprobs": (((3, -0.5),),)}
    events = (token(2, "", 3, pieces={3: "\xc3"}, **scored), token(3, "é", 4, pieces={4: "\xa9"}, **scored))
    found = chunks(CHAT, started(), *events)
    scores = [chunk["choices"][0]["logprobs"] for chunk in found[1:]]
    assert [one["content"][0]["bytes"] for one in scores] == [[0xC3], [0xA9]]


def test_offsets_go_on_from_event_to_event() -> None:
    scored = {"logprobs": (-0.5, -0.5), "pieces": {3: "ab", 4: "c"}}
    found = chunks(COMPLETIONS, started(), token(2, "abc", 3, 4, **scored), token(3, "cab", 4, 3, **scored))
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in found] == [[0, 2], [3, 4]]


@pytest.mark.parametrize("finish_reason", ["cancelled", "deadline", "error"])
def test_an_end_that_is_no_answer_has_no_chunk(finish_reason: str) -> None:
    assert chunks(CHAT, started(), end(2, finish_reason=finish_reason)) == []


def told(n: int = 1) -> Started:
    """A start that tells of a prompt: two tokens, the first with a space that the prompt does not have."""
    prompt = {"prompt_ids": (1, 3, 4), "prompt_text": "ab", "pieces": {1: "", 3: " a", 4: "b"}}
    return started(n).model_copy(update=prompt)


def test_a_prompt_comes_before_each_output_with_its_scores() -> None:
    """Also before an output that has begun before the first one has told of them."""
    scored: dict[str, Any] = {"logprobs": (-0.5,), "pieces": {5: "c", 6: "d"}}
    of_prompt = {"prompt_logprobs": (-0.1, -0.2), "top_prompt_logprobs": (((3, -0.1),), ((6, -0.05),))}
    events = (token(2, "c", 5, choice=1, **scored), token(3, "d", 6, choice=0, **scored, **of_prompt), end(4))
    found = [chunk["choices"][0] for chunk in chunks(COMPLETIONS, told(2), *events)]
    texts = [(one["index"], one["text"]) for one in found if one["text"]]
    assert texts == [(0, "ab"), (1, "ab"), (1, "c"), (0, "d")]
    assert found[0]["logprobs"] == {
        "tokens": ["", "a", "b"],
        "token_logprobs": [None, -0.1, -0.2],
        "top_logprobs": [None, {"a": -0.1}, {"b": -0.2, "d": -0.05}],
        "text_offset": [0, 0, 1],
    }
    assert [one["logprobs"]["text_offset"] for one in found[2:4]] == [[2], [2]]


def test_a_prompt_without_output_is_a_chunk_of_its_own() -> None:
    found = chunks(COMPLETIONS, told(), end(2, finish_reason="length"))
    assert [one["choices"][0]["text"] for one in found] == ["ab", ""]
    assert found[0]["choices"][0]["logprobs"] is None


def test_a_prompt_comes_once_though_the_job_was_begun_again() -> None:
    events = (told(), token(2, "c"), started(), token(4, "d"), end(5))
    assert [one["choices"][0]["text"] for one in chunks(COMPLETIONS, *events)] == ["ab", "c", "d", ""]
