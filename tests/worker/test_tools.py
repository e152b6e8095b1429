"""Tools and reasoning, from a request to its answer: a worker, a gateway and clients as they come.

Nothing here imports openai or langchain before it is needed.
"""

import json
from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from celery import Celery
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from llama_herd.tasks.protocol.events import Token
from tests.cli.gateway_process import GatewayProcess
from tests.cli.herd_command import start_herd
from tests.local.processes import WorkerProcess
from tests.tool_model import SCRIPT, TOOLS, TURNS, scripted, write_tool_model

if TYPE_CHECKING:
    from openai import OpenAI

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

#: A call of one tool; the arguments are short.
ASKED: dict[str, Any] = {
    "model": "tools",
    "messages": TURNS,
    "tools": TOOLS,
    "max_tokens": 300,
    "parallel_tool_calls": False,
    "seed": 7,
}
NAMED = {"type": "function", "function": {"name": "look"}}


@pytest.fixture(scope="module")
def url(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tools")
    model = write_tool_model(folder / "tools.gguf")
    worker = WorkerProcess(server.url, model, "tools", folder / "worker.log", model_name="tools")
    with worker, GatewayProcess(server.url, folder / "gateway.log") as gateway:
        yield gateway.url


def body(**fields: Any) -> dict[str, Any]:
    """A request of the scripted output."""
    made = scripted()
    sampling = made.pop("sampling")
    return {**ASKED, **sampling, "extra_body": made, "parallel_tool_calls": True, **fields}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_tool_that_must_be_called_is_called_as_its_schema_says(openai: "OpenAI", choice: Any) -> None:
    asked = {**ASKED, "tool_choice": choice, "n": 3, "temperature": 1.5}
    answer = openai.chat.completions.create(**asked)
    for one in answer.choices:
        assert (one.finish_reason, one.message.content) == ("tool_calls", None)
        call = (one.message.tool_calls or [])[0]
        assert len(one.message.tool_calls or ()) == 1
        assert call.type == "function"
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
        if choice == NAMED:
            schemas.pop("count")
        Draft202012Validator(schemas[call.function.name]).validate(json.loads(call.function.arguments))
    assert len({call.id for one in answer.choices for call in one.message.tool_calls or ()}) == 3


def joined(openai: "OpenAI", **asked: Any) -> dict[str, Any]:
    """The deltas of a stream, joined as a client joins them."""
    found: dict[str, Any] = {"reasoning": "", "content": "", "calls": {}, "finish_reason": None}
    for chunk in openai.chat.completions.create(**asked, stream=True):
        choice = chunk.choices[0]
        found["content"] += choice.delta.content or ""
        found["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
        found["finish_reason"] = choice.finish_reason or found["finish_reason"]
        for call in choice.delta.tool_calls or ():
            own = found["calls"].setdefault(call.index, {"name": "", "arguments": ""})
            assert call.function is not None
            own["name"] += call.function.name or ""
            own["arguments"] += call.function.arguments or ""
    return found


def test_what_is_thought_said_and_called_is_told_apart_whole_and_streamed(openai: "OpenAI") -> None:
    whole = openai.chat.completions.create(**body()).choices[0]
    calls = {
        index: {"name": call.function.name, "arguments": call.function.arguments}
        for index, call in enumerate(whole.message.tool_calls or ())
        if call.type == "function"
    }
    assert calls == {
        0: {"name": "look", "arguments": '{"at": "herd"}'},
        1: {"name": "count", "arguments": "{}"},
    }
    assert (whole.message.content, whole.finish_reason) == ("So:", "tool_calls")
    assert whole.message.model_extra == {"reasoning_content": "I should look"}
    assert joined(openai, **body()) == {
        "reasoning": "I should look",
        "content": "So:",
        "calls": calls,
        "finish_reason": "tool_calls",
    }


def test_a_second_call_is_text_where_one_is_wanted(openai: "OpenAI") -> None:
    message = openai.chat.completions.create(**body(parallel_tool_calls=False)).choices[0].message
    assert len(message.tool_calls or ()) == 1
    assert message.content == "So: " + SCRIPT[SCRIPT.rindex("<tool_call>") :]


def test_half_a_call_at_max_tokens_is_text(openai: "OpenAI") -> None:
    for num_tokens in (75, 130):
        choice = openai.chat.completions.create(**body(max_tokens=num_tokens)).choices[0]
        streamed = joined(openai, **body(max_tokens=num_tokens))
        assert choice.finish_reason == streamed["finish_reason"] == "length"
        assert (choice.message.content or "") == streamed["content"]
        assert len(choice.message.tool_calls or ()) == len(streamed["calls"])
        assert "<tool_call>" in streamed["content"]


def test_no_tool_is_called_where_none_may_be(openai: "OpenAI") -> None:
    answer = openai.chat.completions.create(**body(tool_choice="none"))
    message = answer.choices[0].message
    assert (message.tool_calls, message.content) == (None, SCRIPT.partition("</think>")[2])
    heard = openai.chat.completions.create(**body()).usage
    assert answer.usage is not None
    assert heard is not None
    assert answer.usage.prompt_tokens < heard.prompt_tokens - 100


def test_a_conversation_goes_on_with_what_a_tool_has_found(openai: "OpenAI") -> None:
    first = openai.chat.completions.create(**body()).choices[0].message
    answers = [
        {"role": "tool", "tool_call_id": call.id, "content": "two llamas"} for call in first.tool_calls or ()
    ]
    turns = [*TURNS, first.model_dump(), *answers]
    again = openai.chat.completions.create(**{**ASKED, "messages": turns, "max_tokens": 4})
    assert again.usage is not None
    assert again.usage.completion_tokens == 4


def test_a_template_hears_whether_to_think_and_stop_strings_count_behind_it(openai: "OpenAI") -> None:
    thinking: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    asked: dict[str, Any] = {"model": "tools", "messages": TURNS, "max_tokens": 40, "seed": 7}
    message = openai.chat.completions.create(**asked, extra_body=thinking).choices[0].message
    thought = (message.model_extra or {})["reasoning_content"]
    assert message.content == ""
    letters = sorted({char for char in thought if char.isalpha()})[:3]
    assert letters
    again = openai.chat.completions.create(**asked, extra_body=thinking, stop=letters).choices[0]
    assert ((again.message.model_extra or {})["reasoning_content"], again.finish_reason) == (
        thought,
        "length",
    )
    spoken = openai.chat.completions.create(**asked, stop=["e", "a"]).choices[0]
    assert not spoken.message.model_extra


class Look(BaseModel):
    model_config = ConfigDict(extra="forbid")

    at: Literal["herd", "llama"] = Field(description="Where to look.")


def test_a_class_is_parsed_by_openais_own_client(openai: "OpenAI") -> None:
    from openai import pydantic_function_tool

    asked = {**ASKED, "tools": [pydantic_function_tool(Look)], "tool_choice": "required"}
    answer = openai.chat.completions.parse(**asked)
    call = (answer.choices[0].message.tool_calls or [])[0]
    assert isinstance(call.function.parsed_arguments, Look)
    with openai.chat.completions.stream(**asked) as stream:
        streamed = (stream.get_final_completion().choices[0].message.tool_calls or [])[0]
    assert streamed.function.parsed_arguments == call.function.parsed_arguments


def test_langchain_binds_tools_and_gets_objects_by_calls(url: str, key: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        base_url=f"{url}/v1", api_key=key, model="tools", max_retries=0, seed=7, max_tokens=300
    )
    bound = model.bind_tools([Look], tool_choice="any", parallel_tool_calls=False)
    (call,) = bound.invoke("Where?").tool_calls
    assert (call["name"], Look.model_validate(call["args"]).at in ("herd", "llama")) == ("Look", True)
    whole = reduce(add, bound.stream("Where?"))
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [("Look", call["args"])]
    structured = model.with_structured_output(Look, method="function_calling")
    answers = [structured.invoke("Where?"), *structured.batch(["Here?", "There?"])]
    assert {type(answer) for answer in answers} == {Look}


def test_a_job_s_result_is_the_same_for_its_client_its_readers_and_celery(
    server: EmbeddedRedis, url: str
) -> None:
    fields: dict[str, Any] = {"messages": TURNS, "tools": TOOLS, "model": "tools", **scripted()}
    with Client(server.url) as client:
        job_id = client.submit(**fields)
        result = client.result(job_id)
        tokens = [event for event in client.stream(job_id) if isinstance(event, Token)]
    assert (result.text, result.reasoning, result.answer) == (SCRIPT, "I should look", "So:")
    assert "".join(token.text for token in tokens) == SCRIPT
    assert "".join(token.reasoning or "" for token in tokens) == result.reasoning
    assert "".join(token.content or "" for token in tokens) == result.content
    assert tuple(call for token in tokens for call in token.tool_calls or ()) == result.tool_calls
    with Celery("shop", broker=server.url, backend=server.url) as app:
        sent = app.send_task("herd.generate", kwargs=fields, queue="herd.tools")
        stored = sent.get(timeout=60)
    assert (stored["reasoning"], stored["content"]) == (result.reasoning, result.content)
    assert [call["name"] for call in stored["tool_calls"]] == ["look", "count"]


def test_a_schema_that_no_grammar_can_follow_is_refused_by_its_place(openai: "OpenAI") -> None:
    from openai import BadRequestError

    odd = {"type": "object", "properties": {"at": {"not": {"type": "string"}}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}]
    with pytest.raises(BadRequestError) as wrong:
        openai.chat.completions.create(**{**ASKED, "tools": tools})
    assert "tools.2.function.parameters" in str(wrong.value)


def test_a_row_of_a_batch_has_what_was_thought_said_and_called(
    server: EmbeddedRedis, url: str, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    made = scripted()
    asked = {"messages": TURNS, "tools": TOOLS, **made.pop("sampling"), **made}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": asked}
    source.write_text(json.dumps(line) + "\n")
    settings = {"HERD_REDIS_URL": server.url}
    with start_herd(
        tmp_path, "batch", str(source), "-o", str(output), "--model", "tools", **settings
    ) as batch:
        _, errors = batch.communicate(timeout=60)
    assert batch.returncode == 0, errors
    (choice,) = json.loads(output.read_text())["response"]["body"]["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == (
        "tool_calls",
        "I should look",
    )
    called = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
    assert (choice["message"]["content"], called) == ("So:", ["look", "count"])
