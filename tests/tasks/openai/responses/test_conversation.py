"""A request that goes on from an answer asks what it asks that has all items so far in its `input`."""

import json
import random
from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter

from llama_herd.errors import InvalidJob
from llama_herd.tasks.openai.responses.answer import ResponseFrame
from llama_herd.tasks.openai.responses.body import PREVIOUS, ResponseBody
from llama_herd.tasks.openai.responses.conversation import NOTHING, Conversation, asked_turns
from llama_herd.tasks.openai.responses.turn_items import input_items
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from tests.tasks.openai.responses.test_events import SEEDS, job_events

CALL = {"type": "function_call", "call_id": "c0", "name": "f", "arguments": '{"a": 1}'}
ITEMS: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "asked"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "in a part"}]},
    {"role": "developer", "content": "be brief"},
    {"role": "system", "content": "be kind", "name": "king"},
    {"role": "assistant", "content": "said"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "said", "annotations": []}]},
    CALL,
    {**CALL, "arguments": "no JSON"},
    {"type": "function_call_output", "call_id": "c0", "output": "1"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "thought"}], "summary": []},
)


@cache
def their_item() -> TypeAdapter[Any]:
    from openai.types.responses import ResponseItem

    return TypeAdapter(ResponseItem)


def job_of(body: ResponseBody) -> GenerationJob:
    """The job, as its record has it."""
    body.keep()
    return GenerationJob.model_validate(json.loads(body.job(Settings()).to_json()))


def some_input(dice: random.Random) -> str | list[dict[str, Any]]:
    """A text, or items. Thoughts at the end are those of no turn, and no template takes them."""
    if dice.random() < 0.3:
        return "a text"
    return [*dice.choices(ITEMS, k=dice.randrange(4)), dice.choice(ITEMS[:-1])]


@pytest.mark.parametrize("body", [{}, {"input": None}, {"instructions": "be brief"}])
def test_what_goes_on_needs_an_input(body: dict[str, Any]) -> None:
    """Without that nothing would be asked, or the instructions alone."""
    earlier = ResponseBody({"input": "asked"}).job(Settings())
    with pytest.raises(InvalidJob) as caught:
        ResponseBody(body, Conversation(asked_turns(earlier))).job(Settings())
    assert [*caught.value.fields] == [("input", "is required")]


@pytest.mark.parametrize("seed", range(200))
def test_a_chain_of_answers_is_all_items_so_far(seed: int) -> None:
    dice = random.Random(seed)
    before, items = NOTHING, list[dict[str, Any]]()
    for _ in range(4):
        given = some_input(dice)
        own = {"instructions": "x"} if dice.random() < 0.5 else {}
        items += [{"role": "user", "content": given}] if isinstance(given, str) else given
        went_on = job_of(ResponseBody({"input": given, **own}, before))
        assert went_on == job_of(ResponseBody({"input": items, **own}))
        result = Result.from_events(job_events(dice.choice(SEEDS)))
        output = ResponseFrame("job", "tales", 5).whole(result)["output"]
        before = Conversation(asked_turns(went_on), output)
        items += output


@pytest.mark.parametrize("seed", range(50))
def test_the_items_of_what_was_asked_ask_the_same(seed: int) -> None:
    """Of a content that is a text they have a part."""
    dice = random.Random(seed)
    asked = job_of(ResponseBody({"instructions": "x", "input": [*dice.choices(ITEMS, k=6), ITEMS[0]]}))
    turns = asked_turns(asked)
    items = input_items("job", turns)
    again = job_of(ResponseBody({"input": items})).messages or ()
    assert [one.model_dump(exclude={"content"}) for one in again] == [
        one.model_dump(exclude={"content"}) for one in turns
    ]
    assert [one.texts for one in again] == [one.texts for one in turns]
    assert len({item["id"] for item in items}) == len(items)
    for item in items:
        their_item().validate_python(item)


def test_instructions_are_for_one_answer_alone() -> None:
    first = job_of(ResponseBody({"instructions": "one", "input": "x"}))
    before = Conversation(asked_turns(first))
    second = job_of(ResponseBody({"instructions": "two", "input": "y"}, before))
    third = job_of(ResponseBody({"input": "z"}, Conversation(asked_turns(second))))
    told = [[turn.content for turn in job.messages or ()] for job in (first, second, third)]
    assert told == [["one", "x"], ["two", "x", "y"], ["x", "y", "z"]]


def test_what_is_wrong_with_the_rest_is_named_by_its_place_in_the_request() -> None:
    before = Conversation(asked_turns(job_of(ResponseBody({"input": "x" * 90}))))
    wrong = {"input": [{"role": "user", "content": "x"}, {"role": "king", "content": "x"}]}
    with pytest.raises(InvalidJob) as refused:
        ResponseBody(wrong, before).job(Settings())
    assert [one.field for one in refused.value.fields] == ["input.1.role"]
    with pytest.raises(InvalidJob) as refused:
        ResponseBody({"input": "y" * 20}, before).job(Settings(max_prompt_bytes=100))
    ((field, message),) = refused.value.fields
    assert (field, message) == (
        "input",
        f"must be at most 100 bytes, got 110, with the conversation of {PREVIOUS}. Fix: fewer or shorter "
        "items in `input`",
    )


def test_without_a_new_input_there_is_nothing_to_answer() -> None:
    before = Conversation(asked_turns(job_of(ResponseBody({"input": "x"}))))
    with pytest.raises(InvalidJob, match="input: is required"):
        ResponseBody({}, before).job(Settings())
