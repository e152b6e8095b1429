"""Bodies of the Responses API: each field that OpenAI's client can send, and each item that it can hold."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.tasks.gateway.completion_request import OWN_FIELDS
from llama_herd.tasks.gateway.response_request import ResponseRequest
from llama_herd.tasks.openai.request_body import CHAT, RequestBody
from llama_herd.tasks.openai.response import response_pieces
from llama_herd.tasks.openai.responses.answer import ResponseFrame, repeated
from llama_herd.tasks.openai.responses.body import CHAT_FIELDS, OWN_REFUSED, ResponseBody
from llama_herd.tasks.openai.responses.input_items import ITEMS
from llama_herd.tasks.openai.responses.schema import ResponseObject, response_schema
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from tests.openai_types import fields_of, values_of, variants_of
from tests.tasks.openai.responses.test_events import SEEDS, job_events

PAGE = Path(__file__).parents[4] / "docs" / "openai.md"
ROW = re.compile(r"^\| `([a-z_.]+)` \| (taken|ignored|refused|only `.+?`)(?:: (.+))? \|$", re.MULTILINE)
#: Of these fields each part has a row of its own.
WITH_PARTS = ("reasoning", "stream_options", "text")


def params() -> dict[str, Any]:
    from openai.types.responses import response_create_params as module

    kinds = variants_of(module.ResponseCreateParams)
    return {name: kind for one in kinds for name, kind in fields_of(one).items()}


def told() -> dict[str, tuple[str, str]]:
    """What the page says of each field."""
    section = PAGE.read_text().partition("\n## `/v1/responses`\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    found = {name: (outcome, why) for name, outcome, why in rows}
    assert len(found) == len(rows) == section.count("\n| `")
    return found


def job(**body: Any) -> GenerationJob:
    return ResponseBody({"input": "x", **body}).job(Settings())


def errors(**body: Any) -> dict[str, str]:
    try:
        job(**body)
    except InvalidJob as error:
        return dict(error.fields)
    return {}


@pytest.mark.parametrize(
    "name", sorted(name for name, (outcome, _) in told().items() if outcome != "refused" and "." not in name)
)
def test_whoever_spells_a_field_in_another_way_is_told_its_name(name: str) -> None:
    first, *rest = name.split("_")
    other = first + "".join(map(str.capitalize, rest)) if rest else f"{name}s"
    assert errors(**{other: 1}) == {other: f"not supported. Did you mean {name}?"}


def test_the_page_tells_of_every_field_and_of_no_other() -> None:
    theirs = params()
    wanted = theirs.keys() | response_schema()["properties"].keys() | OWN_REFUSED.keys()
    for name in WITH_PARTS:
        wanted |= {f"{name}.{part}" for kind in variants_of(theirs[name]) for part in fields_of(kind)}
    assert told().keys() ^ wanted == set()


def test_what_the_page_tells_is_what_is_done() -> None:
    for name, (outcome, why) in told().items():
        field, _, part = name.partition(".")
        if field in ("stream_options", *ResponseRequest.own_fields):
            continue
        found = errors(**{field: {part: object()} if part else object()})
        refused = [words for one, words in found.items() if one == name and words.startswith("not supported")]
        only = [words for one, words in found.items() if one == name and words.startswith("only supported")]
        assert (bool(refused), bool(only)) == (outcome == "refused", outcome.startswith("only")), name
        if outcome == "ignored":
            assert not found, name
        assert why or outcome == "taken", f"{name}: why?"


def test_what_a_chat_has_too_means_the_same() -> None:
    schema = response_schema()["properties"]
    assert {name for name in CHAT_FIELDS if name not in schema} == set()
    given = {"temperature": 0.5, "top_p": 0, "top_k": -1, "stop": "x", "seed": 5, "retries": 2, "min_p": 0.1}
    chat = RequestBody(CHAT, {"messages": [{"role": "user", "content": "x"}], **given}).job(Settings())
    assert job(**given) == chat
    assert OWN_FIELDS


@pytest.mark.parametrize("place", [1, 2])
def test_every_item_that_openais_client_can_hold_is_taken_or_refused_by_its_place(place: int) -> None:
    from openai.types.responses import ResponseInputItemParam

    items = [one for kind in variants_of(ResponseInputItemParam) for one in values_of(kind)]
    taken = set()
    for item in items:
        found = errors(input=[*[{"role": "user", "content": "x"}] * place, item])
        kind = item.get("type") or "message"
        if not found:
            taken.add(kind)
        for field in found:
            assert field == f"input.{place}" or field.startswith(f"input.{place}."), (item, found)
        if kind not in ITEMS:
            assert found[f"input.{place}.type"] == f"must be one of {', '.join(ITEMS)}"
    assert taken == set(ITEMS)
    assert len(items) > 50


def test_an_answer_that_is_sent_back_is_the_turn_that_a_chat_makes_of_it() -> None:
    for events in map(job_events, SEEDS):
        result = Result.from_events(events)
        output = ResponseFrame("job", "tales", 5).whole(result)["output"]
        chat = json.loads("".join(response_pieces(CHAT, "job", "tales", result)))
        first = {"role": "user", "content": "x"}
        turns = [first, chat["choices"][0]["message"]]
        expected = RequestBody(CHAT, {"messages": turns}).job(Settings()).messages or ()
        found = job(input=[first, *output]).messages or ()
        if not output or [one["type"] for one in output] == ["reasoning"]:
            assert len(found) == 1
            continue
        assert found[1].reasoning_content == expected[1].reasoning_content
        assert found[1].tool_calls == expected[1].tool_calls
        assert "".join(found[1].texts) == "".join(expected[1].texts)
        assert len(found) == len(expected) == 2


def test_items_of_an_answer_join_and_others_do_not() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
    said = {"type": "message", "role": "assistant", "content": "said"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thought"}]}
    asked = {"role": "user", "content": "asked"}
    answer = {"type": "function_call_output", "call_id": "c", "output": "1"}
    found = job(
        input=[asked, thought, said, call, call, answer, call, said, thought, asked, thought]
    ).messages
    shapes = [
        (one.role, bool(one.reasoning_content), bool(one.content), len(one.tool_calls or ()))
        for one in found or ()
    ]
    assert shapes == [
        ("user", False, True, 0),
        ("assistant", True, True, 2),
        ("tool", False, True, 0),
        ("assistant", False, False, 1),
        ("assistant", False, True, 0),
        ("user", False, True, 0),
    ]


#: What is wrong, and the fields that are named.
WRONG: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({"input": None}, {"input"}),
    "a number": ({"input": 3}, {"input"}),
    "no items": ({"input": []}, {"input"}),
    "an item": ({"input": ["x"]}, {"input.0"}),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input.0.content"},
    ),
    "behind instructions": (
        {"instructions": "x", "input": [{"role": "king", "content": "x"}]},
        {"input.0.role"},
    ),
    "instructions": ({"instructions": 3}, {"instructions"}),
    "a tool": ({"tools": [{"type": "web_search"}]}, {"tools.0"}),
    "a tool's name": ({"tools": [{"type": "function", "name": "a b"}]}, {"tools.0"}),
    "a choice": ({"tool_choice": {"type": "function", "name": "f"}}, {"tool_choice"}),
    "a form": ({"text": {"format": {"type": "xml"}}}, {"text.format"}),
    "a part": ({"text": {"shape": 1}}, {"text.shape"}),
    "an effort": ({"reasoning": {"effort": "huge"}}, {"reasoning.effort"}),
    "a number of tokens": ({"max_output_tokens": -1}, {"max_output_tokens"}),
    "a number of scores": ({"top_logprobs": 99}, {"top_logprobs"}),
    "a list": ({"include": "x"}, {"include"}),
    "notes": ({"metadata": {"a": 1}}, {"metadata"}),
    "a name": ({"tempurature": 1}, {"tempurature"}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named_as_the_body_names_it(kind: str) -> None:
    body, fields = WRONG[kind]
    found = errors(**body)
    assert found.keys() == fields
    assert not any("function." in words for words in found.values())


ODD: tuple[Any, ...] = (
    "x",
    3,
    1,
    0,
    -1,
    True,
    False,
    [],
    {},
    [{}],
    0.5,
    1.0,
    [{"type": "text", "text": "x"}],
)


@pytest.mark.parametrize("name", sorted(set(params()) - {"stream_options", *ResponseRequest.own_fields}))
def test_what_an_answer_repeats_of_a_value_that_is_taken_is_as_described(name: str) -> None:
    """Each value of its type in the package, and others."""
    for value in [*values_of(params()[name]), *ODD]:
        if not errors(**{name: value}):
            told = ResponseFrame("job", "tales", 5, repeated({name: value})).response("queued")
            ResponseObject.model_validate_json(json.dumps(told), strict=True)


def test_a_random_body_is_taken_or_refused_with_fields_of_its_own() -> None:
    dice = random.Random(1)
    values = ["x", 3, -1, True, [], {}, [{}], [[]], {"type": "function"}, [{"type": "message"}], None, 0.5]
    names = [*response_schema()["properties"], *OWN_REFUSED, "unknown"]
    named = set[str]()
    for _ in range(600):
        body = {name: dice.choice(values) for name in dice.sample(names, 4)}
        try:
            ResponseBody(body).job(Settings())
        except InvalidJob as error:
            named |= {one.field.split(".")[0] for one in error.fields}
    assert {"input", "tools", "text", "unknown"} < named <= {*names, "?"}
