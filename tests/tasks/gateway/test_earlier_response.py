"""A request goes on from an answer that is there, its tenant's, and one that may be gone on from."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.openai.responses.answer import PREFIX
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.chaos.harness.patience import wait_until
from tests.reply import Reply
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import QUEUE, Herd

pytestmark = pytest.mark.redis

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
def client(gateway: GatewayThread) -> Iterator[Any]:
    from openai import OpenAI

    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def respond(gateway: GatewayThread, headers: Mapping[str, str] = {}, /, **body: Any) -> Reply:
    return gateway.ask("POST", "/v1/responses", {"model": "tales", "input": "x", **body}, headers)


def messages(gateway: GatewayThread, response_id: str) -> Any:
    """What a job asks, as operators see it."""
    return gateway.ask("GET", f"/v1/jobs/{response_id.removeprefix(PREFIX)}").json["job"]["messages"]


def test_a_call_is_answered_in_the_next_request(
    gateway: GatewayThread, client: Any, thoughtful: Callable[..., None]
) -> None:
    first = client.responses.create(
        model="tales", input="Ulm?", instructions="Be brief.", tools=[TOOL], background=True
    )
    assert first.previous_response_id is None
    thoughtful()
    told = {"type": "function_call_output", "call_id": "c0", "output": "rain"}
    asked: dict[str, Any] = {"model": "tales", "tools": [TOOL], "background": True}
    second = client.responses.create(input=[told], previous_response_id=first.id, **asked)
    assert (second.status, second.previous_response_id) == ("queued", first.id)
    output = client.responses.retrieve(first.id).output
    items = [{"role": "user", "content": "Ulm?"}, *(one.model_dump(exclude_unset=True) for one in output)]
    alone = client.responses.create(input=[*items, told], **asked)
    assert messages(gateway, second.id) == messages(gateway, alone.id)
    roles = [turn["role"] for turn in messages(gateway, second.id)]
    assert roles == ["user", "assistant", "tool"]
    assert messages(gateway, second.id)[1]["reasoning_content"] == "hm"


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"background": True}])
def test_it_says_from_which_answer_it_goes_on_until_it_is_read_later(
    client: Any, stand_in: StandIn, how: dict[str, bool]
) -> None:
    first = client.responses.create(model="tales", input="hi")
    found = client.responses.create(model="tales", input="more", previous_response_id=first.id, **how)
    said = [event.response for event in found if hasattr(event, "response")] if "stream" in how else [found]
    assert {one.previous_response_id for one in said} == {first.id}
    wait_until(lambda: client.responses.retrieve(said[0].id).output, "it has ended")
    assert client.responses.retrieve(said[0].id).previous_response_id is None


def test_what_an_answer_was_asked_is_listed_page_by_page(
    client: Any, thoughtful: Callable[..., None], gateway: GatewayThread
) -> None:
    first = client.responses.create(
        model="tales", input="Ulm?", instructions="Be brief.", tools=[TOOL], background=True
    )
    thoughtful()
    told = {"type": "function_call_output", "call_id": "c0", "output": "rain"}
    asked: dict[str, Any] = {"input": [told], "previous_response_id": first.id}
    name = client.responses.create(model="tales", background=True, **asked).id
    kinds = ["message", "reasoning", "message", "function_call", "function_call_output"]
    for limit in (1, 2, 5, 20):
        items = list(client.responses.input_items.list(name, order="asc", limit=limit))
        assert [one.type for one in items] == kinds
        assert list(client.responses.input_items.list(name, limit=limit)) == items[::-1]
    assert (items[0].content[0].text, items[3].arguments) == ("Ulm?", '{"city":"Ulm"}')
    empty = gateway.ask("GET", f"/v1/responses/{name}/input_items?order=asc&after={items[-1].id}").json
    assert (empty["data"], empty["has_more"], empty["first_id"]) == ([], False, None)
    for query, param in (("after=x", "after"), ("limit=101", "limit"), ("order=up", "order")):
        wrong = gateway.ask("GET", f"/v1/responses/{name}/input_items?{query}")
        assert (wrong.status, wrong.error["param"]) == (400, param)
    alone = respond(gateway, background=True, store=False).json["id"]
    chat = gateway.ask("POST", "/v1/jobs", {"prompt": "x", "model": "tales"}).json["id"]
    for none in (alone, PREFIX + chat, chat, f"{PREFIX}unknown"):
        assert gateway.ask("GET", f"/v1/responses/{none}/input_items").error["code"] == "not_found"


def test_an_answer_that_is_deleted_takes_nothing_from_those_after_it(
    gateway: GatewayThread, client: Any, stand_in: StandIn
) -> None:
    first = client.responses.create(model="tales", input="one")
    second = client.responses.create(model="tales", input="two", previous_response_id=first.id)
    client.responses.delete(first.id)
    assert client.responses.retrieve(second.id).output == second.output
    third = client.responses.create(model="tales", input="three", previous_response_id=second.id)
    asked = [turn["content"] for turn in messages(gateway, third.id) if turn["role"] == "user"]
    assert asked == ["one", "two", "three"]


def test_what_one_may_not_go_on_from_is_named_with_the_fix(
    gateway: GatewayThread, herd: Herd, thoughtful: Callable[..., None]
) -> None:
    def begun(**body: Any) -> str:
        return str(respond(gateway, background=True, **body).json["id"])

    def ended(**body: Any) -> str:
        made = begun(**body)
        thoughtful()
        return made

    def job(**fields: Any) -> str:
        made = gateway.ask("POST", "/v1/jobs", {"model": "tales", **fields}).json["id"]
        herd.redis.lpop(QUEUE)
        return f"{PREFIX}{made}"

    failed = begun()
    thoughtful(finish_reason="deadline")
    gone = ended()
    gateway.ask("DELETE", f"/v1/responses/{gone}")
    cancelled = begun()
    gateway.ask("POST", f"/v1/responses/{cancelled}/cancel")
    herd.redis.lpop(QUEUE)
    items, route = "send all items so far in `input`", "asked for with store=false, or by another route"
    not_here = "never made, is deleted, or ended longer ago than is kept"
    wrong = {
        "resp_unknown": (not_here, items),
        gone: (not_here, items),
        failed: ("ended as failed", items),
        cancelled: ("ended as cancelled", items),
        ended(store=False): (route, items),
        job(messages=[{"role": "user", "content": "x"}]): (route, items),
        job(kind="embed", texts=["x"]): (route, items),
        begun(): ("has not ended", "wait for its end"),
    }
    for name, (why, fix) in wrong.items():
        found = respond(gateway, previous_response_id=name)
        assert (found.status, found.error["code"]) == (400, "previous_response_not_found"), found.raw
        assert found.error["param"] == "previous_response_id"
        assert found.error["type"] == "invalid_request_error"
        assert why in found.error["message"]
        assert found.error["message"].endswith(f"Fix: {fix}")
    odd: tuple[Any, ...] = ("x", "", PREFIX, f"{PREFIX}a b", 3, True, [], {}, [failed])
    for value in odd:
        found = respond(gateway, previous_response_id=value)
        assert (found.status, found.error["param"]) == (400, "previous_response_id"), value
        assert found.error["code"] == "bad_request"
    assert respond(gateway, background=True, previous_response_id=None).status == 200


def test_nobody_goes_on_from_another_tenants_answer(
    gateway: GatewayThread, stand_in: StandIn, redis: Any
) -> None:
    name = respond(gateway).json["id"]
    found = {}
    for tenant in ("default", "acme"):
        key = run_dialogue(redis, create_key(tenant, tenant, KeyRole.PRODUCER))
        shown = {"Authorization": f"Bearer {key}"}
        found[tenant] = respond(gateway, shown, previous_response_id=name)
        unknown = respond(gateway, shown, previous_response_id=f"{PREFIX}unknown")
        assert unknown.error["code"] == "previous_response_not_found"
    assert found["default"].status == 200
    assert found["acme"].raw == unknown.raw


def test_the_same_key_is_the_same_answer_as_long_as_the_earlier_one_is_there(
    gateway: GatewayThread, stand_in: StandIn
) -> None:
    first, other = (respond(gateway, input=text).json["id"] for text in ("one", "other"))
    key = {"Idempotency-Key": "order 7"}
    made = [respond(gateway, key, previous_response_id=first).json["id"] for _ in range(2)]
    assert made[0] == made[1]
    assert len(stand_in.answered) == 3
    without = respond(gateway, key)
    assert (without.status, without.error["code"]) == (409, "job_conflict")
    gateway.ask("DELETE", f"/v1/responses/{first}")
    assert respond(gateway, key, previous_response_id=first).error["code"] == "previous_response_not_found"
    assert gateway.ask("GET", f"/v1/responses/{made[0]}").status == 200
    assert respond(gateway, key, previous_response_id=other).status == 409


def test_a_conversation_counts_for_the_rate_as_if_it_were_sent(
    redis_url: str, stand_in: StandIn, redis: Any
) -> None:
    key = run_dialogue(redis, create_key("one", "default", KeyRole.PRODUCER))
    shown = {"Authorization": f"Bearer {key}"}
    with GatewayThread(redis_url, key_rate=0.2) as gateway:
        long = respond(gateway, input="x" * 250_000).json["id"]
        assert respond(gateway, shown, previous_response_id=long).status == 200
        assert respond(gateway, shown).error["code"] == "rate_limit_exceeded"


def test_no_conversation_grows_without_bound_by_parts_that_say_nothing(
    gateway: GatewayThread, stand_in: StandIn
) -> None:
    parts = {"role": "user", "content": [{"type": "input_text", "text": ""}] * 256}
    found, told = respond(gateway), list[int]()
    while found.status == 200:
        told.append(found.status)
        found = respond(gateway, input=[parts] * 31, previous_response_id=found.json["id"])
    assert (found.status, found.error["code"]) == (400, "too_many_values")
    assert found.error["param"] == "previous_response_id"
    assert 2 < len(told) < 5


@pytest.mark.parametrize("odd", [{"messages": "x"}, {"messages": [3]}, {"conversation_from": "x"}])
def test_a_record_that_somebody_has_forged_is_unreadable(
    gateway: GatewayThread, stand_in: StandIn, herd: Herd, odd: dict[str, Any]
) -> None:
    name = respond(gateway).json["id"]
    job_id = name.removeprefix(PREFIX)
    body = json.loads(run_call(herd.redis, herd.ledger.body(job_id)) or b"")
    herd.redis.hset(herd.ledger.job_key(job_id), "body", json.dumps({**body, **odd}))
    found = respond(gateway, previous_response_id=name)
    assert (found.status, found.error["code"]) == (500, "unreadable")
