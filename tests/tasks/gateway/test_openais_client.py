"""OpenAI's own client reads every kind of stream whole, however long nothing comes between two chunks."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.stand_in import StandIn
from llama_herd.error_code import ErrorCode
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.gateway.sse import HEARTBEAT
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.protocol.events import End, Failure
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import QUEUE, Herd

pytestmark = pytest.mark.redis

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
USAGE = {"stream_options": {"include_usage": True}}
#: Bodies of streams, by what they are of.
ASKED: dict[str, dict[str, Any]] = {
    "completion": {"prompt": "a"},
    "completion, usage": {"prompt": "a", **USAGE},
    "completions": {"prompt": ["a", "b", "c"]},
    "chat": CHAT,
    "chat, usage": {**CHAT, **USAGE},
    "response": {"input": "a", "top_logprobs": 2},
    "response in the background": {"input": "a", "background": True},
}


def heartbeats_everywhere(app: ASGIApp) -> ASGIApp:
    """The app, with a heartbeat before the first event of each stream, and behind every one."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = False

        async def pass_on(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                is_stream = any(b"text/event-stream" in value for _, value in message["headers"])
            elif is_stream and message["body"]:
                events = message["body"].split(b"\n\n")
                message = {**message, "body": HEARTBEAT + (b"\n\n" + HEARTBEAT).join(events)}
            await send(message)

        await app(scope, receive, pass_on)

    return answer


@pytest.fixture(scope="module")
def lasting_beating_gateway(redis_server: EmbeddedRedis) -> Iterator[GatewayThread]:
    with GatewayThread(redis_server.url, heartbeat_s=0.2, middleware=heartbeats_everywhere) as gateway:
        yield gateway


@pytest.fixture
def beating_gateway(redis: Redis, lasting_beating_gateway: GatewayThread) -> Iterator[GatewayThread]:
    lasting_beating_gateway.forget()
    yield lasting_beating_gateway
    lasting_beating_gateway.rest()


def chunks(gateway: GatewayThread, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream as the client reads them, without what differs from request to request."""
    from openai import OpenAI

    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        if "input" in body:
            asked = {"model": "tales", "max_output_tokens": 4, "extra_body": {"seed": 1}, **body}
            with client.responses.create(stream=True, **asked) as events:
                return [_without_ids(event.model_dump()) for event in events]
        ask = client.chat.completions.create if "messages" in body else client.completions.create
        with ask(model="tales", stream=True, max_tokens=4, seed=1, **body) as stream:
            return [chunk.model_dump(exclude={"id", "created"}) for chunk in stream]


@pytest.mark.parametrize("kind", ASKED)
def test_heartbeats_change_no_stream(
    gateway: GatewayThread, beating_gateway: GatewayThread, stand_in: StandIn, kind: str
) -> None:
    expected = chunks(gateway, ASKED[kind])
    assert len(expected) > 1
    assert sorted(chunks(beating_gateway, ASKED[kind]), key=_choice) == sorted(expected, key=_choice)


def _without_ids(told: Any) -> Any:
    """An event of a response without what differs from request to request."""
    if isinstance(told, list):
        return [_without_ids(one) for one in told]
    if not isinstance(told, dict):
        return told
    kept = {name: one for name, one in told.items() if name not in ("id", "item_id", "created_at")}
    return {name: _without_ids(one) for name, one in kept.items()}


def _choice(chunk: dict[str, Any]) -> list[int]:
    """Chunks of several prompts come in any order, events of a response in that of their numbers."""
    return [choice["index"] for choice in chunk.get("choices", ())] or [chunk.get("sequence_number", 0)]


#: How a job ends without an answer, and what the client raises.
BAD_ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "cancelled": ({"finish_reason": "cancelled"}, "ConflictError"),
    "deadline": ({"finish_reason": "deadline"}, "InternalServerError"),
    "poisoned": (
        {"finish_reason": "error", "error": Failure(code=ErrorCode.POISONED, message="three workers died")},
        "InternalServerError",
    ),
}


@pytest.mark.parametrize("kind", BAD_ENDS)
def test_a_request_whose_job_would_end_so_again_is_not_sent_again(
    gateway: GatewayThread, herd: Herd, kind: str
) -> None:
    """Else a cancelled job goes on under another id, and one that kills workers kills thrice as many."""
    import openai

    end, raised = BAD_ENDS[kind]
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=PATIENCE_S) as client,
        ThreadPoolExecutor(1) as thread,
    ):
        asked = thread.submit(client.completions.create, model="tales", prompt="x")
        ended = []
        while not asked.done():
            wait_until(lambda: asked.done() or herd.redis.llen(QUEUE), "asked or answered")
            if message := herd.redis.lpop(QUEUE):
                ended.append(json.loads(message)["headers"]["id"])
                herd.claimed(ended[-1])
                last = End(seq=1, job=ended[-1], epoch=1, n=0, attempts=1, **end)
                herd.emit("one", EmitEntry.from_event(last, 0))
        assert len(ended) == 1
        with pytest.raises(getattr(openai, raised)) as error:
            asked.result()
        assert [error.value.request_id] == ended
