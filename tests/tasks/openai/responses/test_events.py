"""An answer of the Responses API says the same whole and as it comes, and OpenAI's client reads it."""

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter

from llama_herd.tasks.openai.responses.answer import ResponseFrame
from llama_herd.tasks.openai.responses.events import ResponseEvents
from llama_herd.tasks.openai.responses.schema import ResponseEvent, ResponseObject
from llama_herd.tasks.protocol.events import (
    End,
    Event,
    Failure,
    FinishReason,
    Started,
    Token,
    ToolCall,
    Usage,
)
from llama_herd.tasks.protocol.result import Result

FRAME = ResponseFrame("job", "tales", 1_700_000_000)
ENDS: tuple[FinishReason, ...] = ("stop", "length", "cancelled", "deadline", "error")


def job_events(seed: int) -> list[Event]:
    """The events of a chat's job: it may think, then say something and call tools in turn, with scores."""
    dice = random.Random(seed)
    is_read, has_scores = dice.random() < 0.8, dice.random() < 0.5
    events: list[Event] = [
        Started(
            seq=1, job="job", epoch=1, attempt=1, at_ms=5, worker="w", model="tales", seed=7, cached_tokens=64
        )
    ]
    if dice.random() < 0.2:
        events = []
    num_ids, num_calls = 0, 0
    phases = ["reasoning"] * dice.choice((0, 0, 1, 3)) + ["content", "call", "both", "none"] * dice.choice(
        (0, 1, 2)
    )
    later = phases[phases.count("reasoning") :]
    dice.shuffle(later)
    for phase in [*phases[: phases.count("reasoning")], *later]:
        ids = tuple(range(num_ids, num_ids + dice.randrange(3)))
        said = {"reasoning": "hm", "content": "wort ", "both": "word "}.get(phase, "")
        fields: dict[str, Any] = {}
        if is_read:
            fields["content"] = said if phase in ("content", "both") else ""
            fields["reasoning"] = said if phase == "reasoning" else None
            if phase in ("call", "both"):
                fields["tool_calls"] = (
                    ToolCall(index=num_calls, id=f"c{num_calls}", name="f", arguments="{}"),
                )
                num_calls += 1
        if has_scores:
            fields |= {"logprobs": (-0.5,) * len(ids), "top_logprobs": (((1, -0.5),),) * len(ids)}
            fields["pieces"] = {one: f"<{one}>" for one in {1, *ids}}
        events.append(Token(seq=len(events) + 1, job="job", epoch=1, i=num_ids, ids=ids, text=said, **fields))
        num_ids += len(ids)
    reason = dice.choice(ENDS)
    error = Failure(code="out_of_memory", message="no room") if reason == "error" else None
    usage = Usage(prompt_tokens=70, completion_tokens=num_ids, total_tokens=70 + num_ids)
    last = End(
        seq=len(events) + 1,
        job="job",
        epoch=1,
        finish_reason=reason,
        n=num_ids,
        usage=usage,
        error=error,
        attempts=1,
    )
    return [*events, last]


def told(events: list[Event]) -> Iterator[dict[str, Any]]:
    stream = ResponseEvents(FRAME)
    yield from stream.opening()
    for event in events:
        yield from stream.from_event(event)


SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_event_has_the_answer_that_is_given_whole(seed: int) -> None:
    events = job_events(seed)
    *_, last = told(events)
    assert last["response"] == FRAME.whole(Result.from_events(events))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_events_add_up_to_the_items_of_the_answer(seed: int) -> None:
    items: dict[int, dict[str, Any]] = {}
    done: dict[int, dict[str, Any]] = {}
    found = list(told(job_events(seed)))
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    for one in found:
        match one["type"]:
            case "response.output_item.added":
                assert one["output_index"] == len(items)
                items[one["output_index"]] = json.loads(json.dumps(one["item"]))
            case "response.content_part.added":
                items[one["output_index"]]["content"].append(dict(one["part"]))
            case "response.function_call_arguments.delta":
                items[one["output_index"]]["arguments"] += one["delta"]
            case "response.output_text.delta" | "response.reasoning_text.delta":
                part = items[one["output_index"]]["content"][one["content_index"]]
                part["text"] += one["delta"]
            case "response.output_item.done":
                done[one["output_index"]] = one["item"]
            case _ if one["type"].endswith("_text.done"):
                assert one["text"] == items[one["output_index"]]["content"][0]["text"]
    assert list(done.values()) == found[-1]["response"]["output"] if done else not items
    for number, item in items.items():
        assert item["id"] == done[number]["id"]
        texts = [part["text"] for part in item.get("content", ())]
        assert texts == [part["text"] for part in done[number].get("content", ())]
        assert item.get("arguments") == done[number].get("arguments")


@cache
def theirs() -> TypeAdapter[Any]:
    from openai.types.responses import ResponseStreamEvent

    return TypeAdapter(ResponseStreamEvent)


def test_every_event_is_one_of_openais_and_as_described() -> None:
    for one in (one for seed in SEEDS for one in told(job_events(seed))):
        own = json.loads(json.dumps(one))
        assert theirs().validate_python(own).type == one["type"]
        described = ResponseEvent.model_validate_json(json.dumps(own))
        assert described.model_dump(mode="json", exclude_unset=True) == own


def test_openais_client_comes_to_the_same_answer() -> None:
    from openai._types import omit
    from openai.lib.streaming.responses._responses import ResponseStreamState

    num_good = 0
    for events in map(job_events, SEEDS):
        state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
        for one in told(events):
            state.handle_event(theirs().validate_python(json.loads(json.dumps(one))))
        whole = FRAME.whole(Result.from_events(events))
        if whole["status"] == "completed":
            num_good += 1
            kinds = [one["type"] for one in whole["output"]]
            assert [one.type for one in state._completed_response.output] == kinds
    assert num_good > 5


def test_the_same_events_give_the_same_ones_and_the_whole_is_as_described() -> None:
    for events in map(job_events, SEEDS):
        whole = FRAME.whole(Result.from_events(events))
        assert ResponseObject.model_validate_json(json.dumps(whole)).status == whole["status"]
        assert list(told(events)) == list(told(events))
