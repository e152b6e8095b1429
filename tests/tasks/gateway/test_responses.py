"""OpenAI's client speaks the Responses API: whole, as it comes, in the background, and again later."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks.openai.responses.answer import PREFIX
from llama_herd.tasks.protocol.events import Failure
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd

pytestmark = pytest.mark.redis


@pytest.fixture
def client(gateway: GatewayThread) -> Iterator[Any]:
    from openai import OpenAI

    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_it_is_answered_whole_and_repeats_what_was_asked(client: Any, stand_in: StandIn) -> None:
    asked = {"instructions": "Be brief.", "max_output_tokens": 5, "metadata": {"order": "7"}}
    found = client.responses.create(model="tales", input="hi", **asked)
    assert (found.status, found.object, found.error) == ("incomplete", "response", None)
    assert found.output_text
    assert (found.instructions, found.max_output_tokens, found.metadata) == tuple(asked.values())
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    again = client.responses.retrieve(found.id)
    assert (again.output, again.usage) == (found.output, found.usage)
    assert (again.instructions, again.metadata) == (None, {})


def test_a_stream_says_what_the_whole_answer_says(client: Any, stand_in: StandIn) -> None:
    with client.responses.stream(model="tales", input="hi", max_output_tokens=5) as stream:
        events = list(stream)
    found = events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == found.output_text == client.responses.retrieve(found.id).output_text


def test_thoughts_words_and_calls_are_items(client: Any, thoughtful: Callable[..., None]) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    begun = client.responses.create(model="tales", input="Ulm?", tools=[tool], background=True)
    assert begun.tools[0].name == "weather"
    thoughtful()
    found = client.responses.retrieve(begun.id)
    assert [one.type for one in found.output] == ["reasoning", "message", "function_call"]
    thought, said, call = found.output
    assert (thought.content[0].text, said.content[0].text) == ("hm", "I look.")
    assert (call.call_id, call.name, json.loads(call.arguments)) == ("c0", "weather", {"city": "Ulm"})
    *_, last = client.responses.retrieve(begun.id, stream=True)
    assert (last.type, last.response.output) == ("response.completed", found.output)


FAILURES: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "deadline": ({"finish_reason": "deadline"}, "failed", "server_error"),
    "cancelled": ({"finish_reason": "cancelled"}, "cancelled", None),
    "too long": (
        {
            "finish_reason": "error",
            "error": Failure(code="prompt_too_long", message="prompt: 9 tokens, at most 8"),
        },
        "failed",
        "invalid_prompt",
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_one_that_fails_has_said_what_it_has_said(
    gateway: GatewayThread, client: Any, thoughtful: Callable[..., None], kind: str
) -> None:
    end, status, code = FAILURES[kind]
    begun = client.responses.create(model="tales", input="x", background=True)
    thoughtful(**end)
    found = client.responses.retrieve(begun.id)
    assert (found.status, found.error and found.error.code) == (status, code)
    assert len(found.output) == 3
    assert found.error is None or not found.error.message.startswith("prompt")
    *_, last = client.responses.retrieve(begun.id, stream=True)
    assert (last.type, last.response) == ("response.failed", found)
    assert gateway.ask("GET", f"/v1/responses/{begun.id}").json == json.loads(
        found.model_dump_json(exclude_unset=True)
    )


def test_a_background_answer_is_read_later_from_any_event_on(client: Any, stand_in: StandIn) -> None:
    begun = client.responses.create(model="tales", input="hi", background=True)
    assert (begun.status, begun.output, begun.background) == ("queued", [], True)
    events = [event.model_dump() for event in client.responses.retrieve(begun.id, stream=True)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.incomplete"
    for seen in range(len(events)):
        rest = client.responses.retrieve(begun.id, stream=True, starting_after=seen)
        assert [event.model_dump() for event in rest] == events[seen + 1 :]
    assert client.responses.retrieve(begun.id).model_dump() == events[-1]["response"]


def test_a_background_answer_outlives_a_client_that_leaves(
    gateway: GatewayThread, client: Any, stand_in: StandIn
) -> None:
    stand_in.hold()
    stream = client.responses.create(model="tales", input="hi", background=True, stream=True)
    created = next(iter(stream))
    assert created.type == "response.created"
    stream.close()
    stand_in.go_on()
    *_, last = client.responses.retrieve(created.response.id, stream=True)
    assert last.response.status == "incomplete"


def test_one_that_is_cancelled_says_so_and_keeps_what_it_has_said(client: Any, herd: Herd) -> None:
    begun = client.responses.create(model="tales", input="hi", background=True)
    job_id = begun.id.removeprefix(PREFIX)
    assert client.responses.cancel(begun.id).status == "cancelled"
    (last,) = list(client.responses.retrieve(begun.id, stream=True))[-1:]
    assert (last.type, last.response.status) == ("response.failed", "cancelled")
    assert client.responses.cancel(begun.id).status == "cancelled"
    client.responses.delete(begun.id)
    from openai import NotFoundError

    with pytest.raises(NotFoundError):
        client.responses.retrieve(begun.id)
    assert herd.events(job_id) == []


def test_what_is_no_answer_is_not_found(gateway: GatewayThread, stand_in: StandIn) -> None:
    embedding = gateway.ask("POST", "/v1/jobs", {"kind": "embed", "texts": ["x"]}).json["id"]
    for name in ("resp_nobody", "nobody", embedding, PREFIX + embedding, "resp_", "resp_x%20y"):
        for method, below in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
            found = gateway.ask(method, f"/v1/responses/{name}{below}")
            assert (found.status, found.error["code"]) == (404, "not_found"), (name, method)
    job = gateway.ask("POST", "/v1/jobs", {"prompt": "x"}).json["id"]
    wrong = gateway.ask("GET", f"/v1/responses/{PREFIX}{job}?stream=true&starting_after=x")
    assert (wrong.status, wrong.error["param"]) == (400, "starting_after")
    assert (
        gateway.ask("POST", "/v1/responses", {"model": "tales", "input": "x", "background": 1}).status == 400
    )


def test_the_same_key_is_the_same_answer(gateway: GatewayThread, stand_in: StandIn) -> None:
    body = {"model": "tales", "input": "x", "seed": 1}
    found = [
        gateway.ask("POST", "/v1/responses", body, {"Idempotency-Key": "order 7"}).json["id"]
        for _ in range(2)
    ]
    assert found[0] == found[1]
