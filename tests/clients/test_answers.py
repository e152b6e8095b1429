"""Every kind of answer, whole and as a stream with a silence between any two events, by OpenAI's own clients.

That for Node reads it where it is there, and each major version of that for Python: `make test-clients`.
"""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from tests.clients.client_process import CLIENTS, Case, ClientProcess, new_key
from tests.clients.relay import Relay
from tests.drawing import draw
from tests.local.processes import WorkerProcess
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tool_model import TOOLS, TURNS, scripted, write_tool_model

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

FIRST: dict[str, Any] = {"model": "tools", "seed": 7, "max_tokens": 6}
FORM: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


SCRIPT = scripted()
FORMS: dict[str, dict[str, Any]] = {
    "choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": FORM}}},
    "reasoning and calls": {"tools": TOOLS, **SCRIPT.pop("sampling"), **SCRIPT},
    "must call": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 300},
    "none": {},
}


def kinds(is_chat: bool) -> list[dict[str, Any]]:
    """Every combination of what an answer may have."""
    asked: dict[str, list[Any]] = {
        "form": ["none", "choice", "schema", *(["reasoning and calls", "must call"] if is_chat else [])],
        "n": [1, 2],
        "logprobs": [None, 0, 3],
        **({} if is_chat else {"echo": [False, True], "prompt": ["Once upon a time", ["Once", [5, 6, 7]]]}),
    }
    return [dict(zip(asked, values, strict=True)) for values in product(*asked.values())]


def case(is_chat: bool, kind: dict[str, Any]) -> Case:
    asked = {**kind, **FORMS[kind["form"]]}
    form = asked.pop("form")
    extra = {name: asked.pop(name) for name in ("structured_outputs", "response_format") if name in asked}
    if is_chat:
        num = asked.pop("logprobs")
        asked |= {"messages": TURNS, "logprobs": num is not None, "top_logprobs": num}
    if form == "schema":
        asked["max_tokens"] = 30
    return {"chat": is_chat, "body": {**FIRST, **asked}, "extra": extra}


def cases(num_meeting: int) -> list[Case]:
    """Of each endpoint so many that any two values meet in one, or that each value comes in one."""
    return [
        case(is_chat, json.loads(one))
        for is_chat in (False, True)
        for one in draw({json.dumps(kind): kind for kind in kinds(is_chat)}, num_meeting)
    ]


@pytest.fixture(scope="module")
def relay(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("clients")
    model = write_tool_model(folder / "tools.gguf")
    options: dict[str, Any] = {"model_name": "tools", "deterministic": True}
    with (
        WorkerProcess(server.url, model, "tools", folder / "worker.log", **options),
        GatewayThread(server.url) as gateway,
        Relay(gateway.url) as relay,
    ):
        yield relay


@pytest.fixture(scope="module")
def key(server: EmbeddedRedis) -> str:
    return new_key(server.url)


def joined(chunks: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Any]:
    """The outputs that chunks come to, and the count of tokens behind them."""
    *pieces, last = chunks
    assert last["choices"] == []
    found: dict[int, dict[str, Any]] = {}
    for chunk in pieces:
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        whole = found.setdefault(choice["index"], {"index": choice["index"], "logprobs": None, "calls": []})
        said = choice.get("delta") or {"content": choice.get("text")}
        for name in ("content", "reasoning_content"):
            whole[name] = whole.get(name, "") + (said.get(name) or "")
        whole["calls"] += [call["function"] for call in said.get("tool_calls") or ()]
        if choice["logprobs"] is not None:
            before = whole["logprobs"] or {}
            whole["logprobs"] = {
                name: before.get(name, []) + rows for name, rows in choice["logprobs"].items() if rows
            }
        whole |= {name: choice[name] for name in ("finish_reason", "stop_reason") if name in choice}
    return [found[index] for index in sorted(found)], counted(last["usage"])


def counted(usage: dict[str, Any]) -> dict[str, Any]:
    """The tokens without what depends on the requests before."""
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def told(answer: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """The outputs of a whole answer in the same form."""
    found = []
    for choice in answer["choices"]:
        said = choice.get("message") or {"content": choice.get("text")}
        scores = choice["logprobs"]
        found.append(
            {
                "index": choice["index"],
                "logprobs": scores and {name: rows for name, rows in scores.items() if rows},
                "calls": [call["function"] for call in said.get("tool_calls") or ()],
                "content": said["content"] or "",
                "reasoning_content": said.get("reasoning_content") or "",
                **{name: choice[name] for name in ("finish_reason", "stop_reason")},
            }
        )
    return found, counted(answer["usage"])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stream_comes_to_the_whole(relay: Relay, key: str, client: str) -> None:
    asked = cases(2 if client in ("1", "2") else 1)
    found = ClientProcess(client, relay.url, key, asked).read()
    for one, answer, stream in zip(asked, found["answers"], found["streams"], strict=True):
        assert joined(answer["chunks"]) == told(answer["whole"]), one
        assert joined(stream) == told(answer["whole"]), one


def response_cases() -> list[Case]:
    """Of each form one request to the Responses API, with scores and without."""
    turn = {"model": "tools", "input": TURNS[0]["content"]}
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    form = {"format": {"type": "json_schema", "name": "a", "schema": FORM}}
    scripted = {name: SCRIPT[name] for name in ("structured_outputs",)}
    bodies: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"max_output_tokens": 6}, {"seed": 7}),
        ({"max_output_tokens": 30, "text": form}, {"seed": 7}),
        ({"tools": tools, "tool_choice": "required", "max_output_tokens": 300}, {"seed": 7}),
        (
            {"tools": tools, "max_output_tokens": 400},
            {
                **scripted,
                **{k: v for k, v in FORMS["reasoning and calls"].items() if k in ("seed", "logit_bias")},
            },
        ),
    ]
    return [
        {"responses": {**turn, **body, **scores}, "extra": extra}
        for body, extra in bodies
        for scores in ({}, {"top_logprobs": 2})
    ]


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_events_of_a_response_come_to_the_whole(relay: Relay, key: str, client: str) -> None:
    asked = response_cases()
    found = ClientProcess(client, relay.url, key, asked).read()
    kinds = set()
    for one, answer, stream in zip(asked, found["answers"], found["streams"], strict=True):
        output = without_ids(answer["whole"]["output"])
        kinds |= {item["type"] for item in output}
        for events in (answer["chunks"], stream):
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert without_ids(events[-1]["response"]["output"]) == output, one
            texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
            said = [item["content"][0]["text"] for item in output if item["type"] == "message"]
            assert "".join(texts) == "".join(said)
    assert kinds == {"reasoning", "message", "function_call"}
