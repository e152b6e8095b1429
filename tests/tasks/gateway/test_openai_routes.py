"""OpenAI's endpoints over plain HTTP, with a worker played by hand."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.gateway.openapi import STREAM as EVENTS
from llama_herd.tasks.gateway.problem import OPENAI_CODES
from llama_herd.tasks.gateway.sse import sse
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.events import End, Failure, Started, Usage
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.gateway.described import hold_to_description
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import QUEUE, Herd, end, started, token

pytestmark = pytest.mark.redis

ASKED = {"model": "tales", "prompt": "the secret prompt", "max_tokens": 4}
STREAM = {**ASKED, "stream": True}
COMPLETIONS = "/v1/completions"


def test_an_answer_names_its_job(gateway: GatewayThread, stand_in: StandIn) -> None:
    found = gateway.ask("POST", COMPLETIONS, ASKED)
    assert found.status == 200
    job_id = found.headers["x-job-id"]
    assert found.json["id"] == f"cmpl-{job_id}"
    assert found.headers["x-request-id"] == job_id
    assert found.json["choices"][0]["text"].startswith("the secret prompt: 0 1")
    assert stand_in.answered == [job_id]


def begun(herd: Herd, answer: Any) -> str:
    """The job of an answer, claimed and started."""
    job_id = str(answer.getheader("X-Job-Id"))
    herd.claimed(job_id)
    herd.emit("one", started(job_id))
    return job_id


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["b"]})],
)
def test_celery_keeps_no_copy_of_vectors(
    gateway: GatewayThread, herd: Herd, path: str, fields: dict[str, Any]
) -> None:
    """Nobody would read it, and in a Redis of its own it would outlive the job."""
    with closing(gateway.connect()) as connection:
        connection.request("POST", path, json.dumps({"model": "tales", **fields}))
        wait_until(lambda: herd.redis.llen(QUEUE), "submitted")
        assert json.loads(herd.redis.lindex(QUEUE, 0))["headers"]["ignore_result"] is True


@pytest.mark.long
def test_a_stream_is_read_as_it_is_written(gateway: GatewayThread, herd: Herd) -> None:
    with gateway.send("POST", COMPLETIONS, STREAM) as answer:
        job_id = begun(herd, answer)
        events = events_of(answer)
        for seq in (2, 3):
            herd.emit("one", token(job_id, seq, seq - 2))
            chunk = next(events)
            assert chunk.json["choices"][0]["text"] == f"<{seq}.1>"
            assert chunk.number == seq  # from which the job's own events go on
        herd.emit("one", end(job_id, 4, 2))
        assert next(events).json["choices"][0]["finish_reason"] == "stop"
        assert next(events).data == "[DONE]"
        assert next(events, None) is None


def test_an_event_is_named_once_all_of_its_chunks_are_there(gateway: GatewayThread, herd: Herd) -> None:
    """So whoever is cut off between them, and goes on by the job's own events, misses nothing."""
    chat = {"model": "tales", "messages": [{"role": "user", "content": "x"}]}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with gateway.send("POST", "/v1/chat/completions", {**chat, **options}) as answer:
        job_id = begun(herd, answer)
        herd.emit("one", token(job_id, 2, 0), end(job_id, 3, 1))
        role, content, finish, usage, done = events_of(answer)
        assert role.json["choices"][0]["delta"]["role"] == "assistant"
        assert content.json["choices"][0]["delta"]["content"]
        assert usage.json["choices"] == []
        assert [one.number for one in (role, content, finish, usage, done)] == [None, 2, None, 3, None]


@pytest.mark.parametrize(("has_usage", "counts"), [(True, [1, 1]), (False, [])])
def test_a_stream_counts_as_it_comes_by_vllm_s_option(
    gateway: GatewayThread, herd: Herd, has_usage: bool, counts: list[int]
) -> None:
    """As GuideLLM asks for it; in vLLM it does nothing by itself."""
    options = {"include_usage": has_usage, "continuous_usage_stats": True}
    with gateway.send("POST", COMPLETIONS, {**STREAM, "stream_options": options}) as answer:
        job_id = str(answer.getheader("X-Job-Id"))
        herd.claimed(job_id)
        first = Started(
            at_ms=1, seq=1, job=job_id, epoch=1, attempt=1, worker="w", model="tales", seed=7, prompt_tokens=3
        )
        usage = Usage(prompt_tokens=3, completion_tokens=1, total_tokens=4)
        last = End(seq=3, job=job_id, epoch=1, finish_reason="stop", n=1, attempts=1, usage=usage)
        herd.emit("one", EmitEntry.from_event(first, 0), token(job_id, 2, 0), EmitEntry.from_event(last, 1))
        *chunks, done = events_of(answer)
        assert done.data == "[DONE]"
        told = [chunk.json.get("usage") for chunk in chunks if chunk.json["choices"]]
        assert [usage["completion_tokens"] for usage in told if usage] == counts


@pytest.mark.long
def test_a_client_that_goes_away_takes_its_job_along(gateway: GatewayThread, herd: Herd) -> None:
    with gateway.send("POST", COMPLETIONS, STREAM) as answer:
        job_id = begun(herd, answer)
    wait_until(lambda: herd.redis.hget(herd.ledger.job_key(job_id), "cancel") == b"cancelled", "cancelled")


@pytest.mark.long
def test_a_client_that_waits_for_the_whole_may_go_away_too(gateway: GatewayThread, herd: Herd) -> None:
    connection = gateway.connect()
    connection.request("POST", COMPLETIONS, b'{"model": "tales", "prompt": "x"}')
    wait_until(lambda: herd.redis.llen(QUEUE), "submitted")
    connection.close()
    wait_until(lambda: not herd.redis.zcard(herd.ledger.key("pending")), "cancelled")


@pytest.mark.long
@pytest.mark.parametrize("headers", [{"X-On-Disconnect": "stay"}, {"Idempotency-Key": "order 7"}])
def test_a_job_that_was_asked_to_stay_goes_on(
    gateway: GatewayThread, herd: Herd, headers: dict[str, str]
) -> None:
    """One with a key of its own, too, so that the same request finds it."""
    with gateway.send("POST", COMPLETIONS, STREAM, headers) as answer:
        job_id = begun(herd, answer)
    wait_until(lambda: not gateway.context.concurrency.num_taken, "the gateway has noticed")
    herd.emit("one", token(job_id, 2, 0), end(job_id, 3, 1))
    assert herd.field(job_id, "state") == "done"


def test_only_an_answer_that_nobody_can_watch_has_few_events(
    gateway: GatewayThread, herd: Herd, stand_in: StandIn
) -> None:
    """Under a key the same job may be asked for as a stream, so it is the same job either way."""
    whole: dict[str, Any] = {"model": "tales", "prompt": "x"}
    key = {"Idempotency-Key": "order 9"}
    paces = []
    for body, headers in ((whole, {}), (whole, key), ({**whole, "stream": True}, key)):
        with gateway.send("POST", COMPLETIONS, body, headers) as answer:
            assert answer.status == 200
            job_id = str(answer.getheader("X-Job-Id"))
        paces.append(json.loads(herd.field(job_id, "body")).get("flush_ms"))
    assert paces == [500, None, None]


def test_the_same_key_is_the_same_job(gateway: GatewayThread, stand_in: StandIn) -> None:
    key = {"Idempotency-Key": "order 7"}
    first, again = (gateway.ask("POST", COMPLETIONS, ASKED, key) for _ in range(2))
    assert first.json["choices"] == again.json["choices"]
    assert len(stand_in.answered) == 1
    other = gateway.ask("POST", COMPLETIONS, {**ASKED, "max_tokens": 5}, key)
    assert (other.status, other.error["code"]) == (409, "job_conflict")


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"prompt": 5}, "prompt", "valid string"),
        ({"max_tokens": 0}, "max_tokens", "must be at least 1, got 0"),
        ({"min_tokens": 9}, None, "min_tokens must be at most max_tokens"),
        ({"tools": [{"type": "function"}]}, "tools", "only supported as [] here"),
        ({"response_format": {"type": "yaml"}}, "response_format", "must have the type text, json_object"),
        ({"nonsense": 1}, "nonsense", "not supported"),
        ({"max_token": 1}, "max_token", "not supported. Did you mean max_tokens?"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only with stream=true"),
        ({"stream": True, "stream_options": {"more": True}}, "stream_options.more", "not supported"),
    ],
)
def test_a_wrong_field_is_named(
    gateway: GatewayThread, herd: Herd, change: dict[str, Any], param: str | None, message: str
) -> None:
    found = gateway.ask("POST", COMPLETIONS, {**ASKED, **change})
    assert (found.status, found.error["param"]) == (400, param)
    assert found.error["type"] == "invalid_request_error"
    assert message in found.error["message"]
    assert "secret" not in found.error["message"]


def test_what_cannot_be_called_is_refused_by_name(gateway: GatewayThread, herd: Herd) -> None:
    asked = {
        "model": "tales",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function"}],
        "tool_choice": "required",
    }
    found = gateway.ask("POST", "/v1/chat/completions", asked)
    assert (found.status, found.error["param"]) == (400, "tools.0")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 60, b'"a"', b'{"a": NaN}}'])
def test_what_is_no_object_is_a_bad_request(gateway: GatewayThread, body: bytes) -> None:
    found = gateway.ask("POST", COMPLETIONS, body)
    assert (found.status, found.error["code"]) == (400, "invalid_json")


@pytest.fixture(scope="module")
def patient(redis_server: EmbeddedRedis) -> Iterator[GatewayThread]:
    """One that begins no stream as long as a busy machine may take to fail a job."""
    with GatewayThread(redis_server.url, heartbeat_s=PATIENCE_S) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("code", "status"),
    [("prompt_too_long", 400), ("tokenizer_error", 400), ("out_of_memory", 503), ("numeric_error", 500)],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_job_that_fails_at_once_has_a_status(
    redis_url: str, patient: GatewayThread, code: str, status: int, is_stream: bool
) -> None:
    failure = Failure(code=code, message="it did not work", retriable=status == 503)
    patient.forget()
    with StandIn(redis_url, verdict=lambda job_id, job: failure):
        found = patient.ask("POST", COMPLETIONS, {**ASKED, "stream": is_stream})
    assert (found.status, found.error["code"]) == (status, OPENAI_CODES.get(code, code))
    assert "x-job-id" in found.headers
    assert ("retry-after" in found.headers) == (status == 503)


@pytest.mark.long
def test_a_stream_that_fails_on_its_way_says_so_last(gateway: GatewayThread, herd: Herd) -> None:
    with gateway.send("POST", COMPLETIONS, STREAM) as answer:
        job_id = begun(herd, answer)
        failure = Failure(code="model_error", message="the device was lost")
        last = End(seq=3, job=job_id, epoch=1, finish_reason="error", n=1, attempts=1, error=failure)
        herd.emit("one", token(job_id, 2, 0), EmitEntry.from_event(last, 1))
        *_, found = events_of(answer)
    assert (found.name, found.json["error"]["code"]) == ("error", "model_error")
    hold_to_description("POST", COMPLETIONS, 200, EVENTS, sse(found.data, name=found.name))


def test_a_cancelled_answer_is_a_conflict(gateway: GatewayThread, herd: Herd) -> None:
    connection = gateway.connect()
    connection.request("POST", COMPLETIONS, b'{"model": "tales", "prompt": "x"}')
    wait_until(lambda: herd.redis.zcard(herd.ledger.key("pending")), "submitted")
    (job_id,) = herd.redis.zrange(herd.ledger.key("pending"), 0, -1)
    assert gateway.ask("DELETE", f"/v1/jobs/{job_id.decode()}").json["cancellation"] == "cancelled"
    assert connection.getresponse().status == 409


def test_a_model_that_nobody_serves_is_not_found(gateway: GatewayThread, redis: Redis) -> None:
    found = gateway.ask("POST", COMPLETIONS, {**ASKED, "model": "tales"})
    assert (found.status, found.error["code"], found.headers["retry-after"]) == (503, "no_worker", "1")
    assert gateway.ask("GET", "/v1/models").json["data"] == []


def test_other_models_are_not_found_while_one_is_served(gateway: GatewayThread, herd: Herd) -> None:
    found = gateway.ask("POST", COMPLETIONS, {**ASKED, "model": "other"})
    assert (found.status, found.error["code"], found.error["param"]) == (404, "model_not_found", "model")
    assert found.error["message"] == "no worker serves this model. Served are: tales"
    mistyped = [
        gateway.ask("POST", COMPLETIONS, {**ASKED, "model": "taels"}),
        gateway.ask("GET", "/v1/models/taels"),
    ]
    assert all("Did you mean tales?" in one.error["message"] for one in mistyped)
    of_a_hub = gateway.ask("POST", COMPLETIONS, {**ASKED, "model": "meta-llama/Llama-3.1-8B"})
    assert (of_a_hub.status, of_a_hub.error["code"]) == (404, "model_not_found")
    assert gateway.ask("GET", "/v1/models/tales").json["id"] == "tales"
    assert gateway.ask("GET", "/v1/models/other").status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, {"prompt": "x"}), ("/tokenize", {"prompt": "x"}), ("/v1/embeddings", {"input": "x"})],
)
def test_who_names_no_model_is_told_which_one_was_taken(
    gateway: GatewayThread, redis: Redis, path: str, body: dict[str, str]
) -> None:
    for model in ("large", "small"):
        status = WorkerStatus(name=model, state="ready", model=model, device="none", slots=1)
        run_call(redis, Reports().report_worker(status))
    found = gateway.ask("POST", path, body)
    assert (found.status, found.error["code"], found.error["param"]) == (404, "model_not_found", "model")
    assert found.error["message"] == (
        "the request names no model, and no worker serves tales, which this gateway takes then. Served are: "
        "large, small. Fix: name one of these, or set HERD_MODEL_NAME of the gateway"
    )


def test_a_model_tells_what_all_of_its_workers_take(redis_url: str, redis: Redis) -> None:
    kinds = {"a": (9_000, 4096), "b": (5_000, 8192), "c": (0, 0)}
    for name, (started_ms, most) in kinds.items():
        status = WorkerStatus(name=name, state="ready", model="tales", device="none", slots=1)
        told = status.model_copy(update={"started_ms": started_ms, "max_length": most})
        run_call(redis, Reports().report_worker(told))
    with GatewayThread(redis_url, models="waits") as gateway:
        listed = {one["id"]: one for one in gateway.ask("GET", "/v1/models").json["data"]}
        assert gateway.ask("GET", "/v1/models/tales").json == listed["tales"]
    assert (listed["tales"]["created"], listed["tales"]["max_model_len"]) == (5, 4096)
    assert (listed["waits"]["created"], listed["waits"]["max_model_len"]) == (0, None)


def test_a_standing_model_waits_for_its_worker(redis_url: str) -> None:
    with GatewayThread(redis_url, models="tales") as gateway:
        assert [one["id"] for one in gateway.ask("GET", "/v1/models").json["data"]] == ["tales"]
        connection = gateway.connect()
        connection.request("POST", COMPLETIONS, b'{"model": "tales", "prompt": "x"}')
        with StandIn(redis_url):
            assert connection.getresponse().status == 200


def test_a_full_queue_says_when_to_come_again(redis_url: str, herd: Herd) -> None:
    herd.submit("waits")
    with GatewayThread(redis_url) as gateway:
        gateway.context.client_of("default").core.ledger.__dict__["max_queue"] = 1
        found = gateway.ask("POST", COMPLETIONS, ASKED)
    assert (found.status, found.error["code"]) == (429, "queue_full")
    assert found.headers["retry-after"].isdigit()


def test_no_route_and_no_method_have_the_same_shape(gateway: GatewayThread) -> None:
    assert gateway.ask("GET", "/v1/nothing").error["code"] == "not_found"
    assert gateway.ask("PUT", "/v1/models").error["code"] == "method_not_allowed"


def test_a_wrong_slash_leads_nowhere(gateway: GatewayThread) -> None:
    """A redirect would be to a name and a scheme that the client may have made up, with its key."""
    found = gateway.ask("POST", "/v1/jobs/", ASKED, {"Host": "evil.example"})
    assert (found.status, found.headers.get("location")) == (404, None)
