"""Completions of several prompts, with workers played by hand."""

import json
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.protocol.events import End, Failure, Usage
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import QUEUE, Herd, commands, end, started, token

pytestmark = pytest.mark.redis

COMPLETIONS = "/v1/completions"
TOO_LONG = "prompt_ids: 99 tokens, but prompt and completion may have at most 9. Fix: set sampling.max_tokens"


def asked(*prompts: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "tales", "prompt": list(prompts), "max_tokens": 4, **fields}


def fails_at(*texts: str, code: str = "prompt_too_long") -> Any:
    def verdict(job_id: str, job: GenerationJob) -> Failure | None:
        return Failure(code=code, message=TOO_LONG) if job.prompt in texts else None

    return verdict


def test_each_prompt_has_its_outputs_in_order(gateway: GatewayThread, stand_in: StandIn) -> None:
    prompts = [f"secret {number}" for number in range(200)]
    found = gateway.ask("POST", COMPLETIONS, asked(*prompts))
    assert found.status == 200, found.raw
    choices = found.json["choices"]
    assert [one["index"] for one in choices] == list(range(200))
    assert [one["text"].partition(": ")[0] for one in choices] == prompts
    assert found.json["usage"] == {"prompt_tokens": 800, "completion_tokens": 3200, "total_tokens": 4000}
    first = found.headers["x-job-id"]
    assert found.json["id"] == f"cmpl-{first}"
    assert set(stand_in.answered) == {first, *(f"{first}.{number}" for number in range(1, 200))}


def test_they_are_kept_as_long_as_one(gateway: GatewayThread, stand_in: StandIn, herd: Herd) -> None:
    """Not as long as jobs of `submit_many`, which somebody reads after a weekend."""
    for prompts in (["a"], ["a", "b"]):
        found = gateway.ask("POST", COMPLETIONS, asked(*prompts))
        assert herd.redis.hget(herd.ledger.job_key(found.headers["x-job-id"]), "keep_s") is None


def test_they_are_submitted_by_few_calls(gateway: GatewayThread, stand_in: StandIn, herd: Herd) -> None:
    """Of fifty jobs each, as `submit_many` does; all of them in one round trip."""

    def act(num: int) -> None:
        assert gateway.ask("POST", COMPLETIONS, asked(*["secret"] * num)).status == 200

    act(2)  # now Redis knows the scripts
    heard = commands(herd.redis, lambda: act(60), by_scripts=False)
    assert sum(one.startswith("EVALSHA") and "max_tokens" in one for one in heard) == 2


@pytest.mark.long
def test_a_stream_tells_of_all_of_them_as_they_come(gateway: GatewayThread, herd: Herd) -> None:
    body = asked("a", "b", stream=True, stream_options={"include_usage": True})
    with gateway.send("POST", COMPLETIONS, body) as answer:
        first = str(answer.getheader("X-Job-Id"))
        second = f"{first}.1"
        for job_id in (second, first):
            herd.claimed(job_id)
            herd.emit("one", started(job_id))
        events = events_of(answer)
        for job_id, index, seq in ((second, 1, 2), (first, 0, 2), (second, 1, 3)):
            herd.emit("one", token(job_id, seq, seq - 2))
            chunk = next(events)
            assert (chunk.json["choices"][0]["index"], chunk.json["id"]) == (index, f"cmpl-{first}")
            assert (chunk.json["usage"], chunk.number) == (None, None)
        for job_id, n, seq in ((second, 2, 4), (first, 1, 3)):
            usage = Usage(prompt_tokens=3, completion_tokens=n, total_tokens=3 + n)
            last = End(seq=seq, job=job_id, epoch=1, finish_reason="stop", n=n, attempts=1, usage=usage)
            herd.emit("one", EmitEntry.from_event(last, n))
            assert next(events).json["choices"][0]["finish_reason"] == "stop"
        assert next(events).json["usage"] == {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}
        assert next(events).data == "[DONE]"
        assert next(events, None) is None


@pytest.mark.long
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_goes_away_takes_all_jobs_along(
    gateway: GatewayThread, herd: Herd, is_stream: bool
) -> None:
    connection = gateway.connect()
    connection.request("POST", COMPLETIONS, json.dumps(asked("a", "b", "c", stream=is_stream)))
    wait_until(lambda: herd.redis.llen(QUEUE) == 3, "submitted")
    connection.close()
    wait_until(lambda: not herd.redis.zcard(herd.ledger.key("pending")), "all are cancelled")


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_prompt_that_fails_is_named(redis_url: str, gateway: GatewayThread, is_stream: bool) -> None:
    with StandIn(redis_url, verdict=fails_at("c")):
        body = gateway.ask("POST", COMPLETIONS, asked("a", "b", "c", stream=is_stream)).raw.decode()
    told = json.loads(body.rpartition("data: ")[2])["error"]
    assert (told["code"], told["param"]) == ("context_length_exceeded", "prompt.2")
    assert told["message"] == (
        "prompt.2: 99 tokens, but prompt and completion may have at most 9. Fix: set max_tokens"
    )
    assert "[DONE]" not in body


@pytest.mark.long
def test_one_that_fails_ends_those_that_wait(gateway: GatewayThread, herd: Herd) -> None:
    with gateway.send("POST", COMPLETIONS, asked("a", "b", "c", stream=True)) as answer:
        first = str(answer.getheader("X-Job-Id"))
        herd.claimed(f"{first}.1")
        herd.emit("one", started(f"{first}.1"))
        failure = Failure(code="model_error", message="the device was lost")
        last = End(seq=2, job=f"{first}.1", epoch=1, finish_reason="error", n=0, attempts=1, error=failure)
        herd.emit("one", EmitEntry.from_event(last, 0))
        *_, found = events_of(answer)
    assert (found.name, found.json["error"]["code"]) == ("error", "model_error")
    wait_until(lambda: not herd.redis.zcard(herd.ledger.key("pending")), "the others are cancelled")


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x"}, "prompt"),
        (COMPLETIONS, {"prompt": [5, 6]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "messages"),
    ],
)
def test_a_worker_s_error_names_the_route_s_own_field(
    redis_url: str, gateway: GatewayThread, endpoint: str, body: dict[str, Any], param: str
) -> None:
    failure = Failure(code="prompt_too_long", message=TOO_LONG)
    with StandIn(redis_url, verdict=lambda job_id, job: failure):
        found = gateway.ask("POST", endpoint, {"model": "tales", **body})
    assert found.error["param"] == param
    assert found.error["message"].startswith(f"{param}: 99 tokens")
    assert "sampling" not in found.error["message"]


def test_the_same_key_is_the_same_jobs(gateway: GatewayThread, stand_in: StandIn) -> None:
    key = {"Idempotency-Key": "order 7"}
    first, again = (gateway.ask("POST", COMPLETIONS, asked("a", "b"), key) for _ in range(2))
    assert first.json["choices"] == again.json["choices"]
    assert len(stand_in.answered) == 2
    other = gateway.ask("POST", COMPLETIONS, asked("a", "c"), key)
    assert (other.status, other.error["code"], other.error["param"]) == (409, "job_conflict", "prompt.1")


@pytest.mark.parametrize(
    ("first", "second"),
    [("ab", "abc"), ("abc", "ab"), ("a", "ab"), ("ab", "a")],
)
def test_a_longer_or_shorter_list_under_a_key_is_another_request(
    gateway: GatewayThread, stand_in: StandIn, herd: Herd, first: str, second: str
) -> None:
    key = {"Idempotency-Key": "order 7"}
    assert gateway.ask("POST", COMPLETIONS, asked(*first), key).status == 200
    found = gateway.ask("POST", COMPLETIONS, asked(*second), key)
    assert (found.status, found.error["code"]) == (409, "job_conflict")
    assert len(stand_in.answered) == len(first)
    assert not herd.redis.exists(herd.ledger.key("pending"))
    assert gateway.ask("POST", COMPLETIONS, asked(*first), key).status == 200


def test_another_request_under_a_key_ends_none_of_the_first_one_s_jobs(
    gateway: GatewayThread, herd: Herd
) -> None:
    key = {"Idempotency-Key": "order 7"}
    with closing(gateway.connect()) as first:
        first.request("POST", COMPLETIONS, json.dumps(asked("a", "b")), key)
        wait_until(lambda: herd.redis.llen(QUEUE) == 2, "submitted")
        found = gateway.ask("POST", COMPLETIONS, asked("a", "c"), {**key, "X-On-Disconnect": "cancel"})
        assert found.error["code"] == "job_conflict"
        wait_until(lambda: not gateway.context._chores, "what is to be cancelled is")
        assert herd.redis.zcard(herd.ledger.key("pending")) == 2


def test_more_than_the_queue_takes_are_all_taken_back(redis_url: str, herd: Herd) -> None:
    with GatewayThread(redis_url) as gateway:
        gateway.context.client_of("default").core.ledger.__dict__["max_queue"] = 2
        found = gateway.ask("POST", COMPLETIONS, asked("a", "b", "c"))
        assert (found.status, found.error["code"], found.error["param"]) == (429, "queue_full", "prompt.2")
        wait_until(lambda: not herd.redis.zcard(herd.ledger.key("pending")), "the first two are cancelled")


@pytest.mark.parametrize("prompts", [["a"], ["a", "b"]])
def test_what_may_be_accepted_though_it_was_refused_is_taken_back(
    redis_url: str, herd: Herd, monkeypatch: pytest.MonkeyPatch, prompts: list[str]
) -> None:
    """Its client knows no id of it, and sends the same again under another one."""
    monkeypatch.setenv("HERD_REPLICAS", "1")
    monkeypatch.setenv("HERD_REPLICAS_TIMEOUT_S", "0.01")
    with GatewayThread(redis_url) as gateway:
        found = gateway.ask("POST", COMPLETIONS, asked(*prompts))
        assert (found.status, found.error["code"]) == (503, "not_replicated")
        wait_until(lambda: not herd.redis.zcard(herd.ledger.key("pending")), "it is cancelled")


@pytest.mark.parametrize(
    ("prompt", "param", "message"),
    [
        ([], "prompt", "must not be empty"),
        ([[]], "prompt", "must not be empty"),
        (["a", ""], "prompt.1", "must not be empty"),
        (["a", 5], "prompt.1", "valid string"),
        ([["a"]], "prompt.0", "valid integer"),
        ([[[5]]], "prompt.0", "valid integer"),
        (["a"] * 4, "prompt", "at most 3 prompts, got 4"),
        ([[5]] * 8000, "prompt", "at most 3 prompts, got 8,000"),
        ([[5]] * 9000, None, "at most 8192 objects and arrays"),
        (["a"] * 200_000, None, "must have at most"),
    ],
)
def test_a_hostile_list_is_refused_by_name(
    redis_url: str, herd: Herd, prompt: Any, param: str | None, message: str
) -> None:
    with GatewayThread(redis_url, max_prompts=3) as gateway:
        found = gateway.ask("POST", COMPLETIONS, {"model": "tales", "prompt": prompt})
    assert (found.status, found.error["param"]) == (400, param)
    assert message in found.error["message"]
    assert not herd.redis.llen(QUEUE)


def test_a_stream_of_several_takes_a_place_for_each(redis_url: str, herd: Herd) -> None:
    with GatewayThread(redis_url, max_tenant_streams=2, heartbeat_s=0.2) as gateway:
        found = gateway.ask("POST", COMPLETIONS, asked("a", "b", "c", stream=True))
        assert (found.status, found.error["code"]) == (400, "too_many_streams")  # at any time
        assert found.error["message"].startswith("3 streams at once, and at most 2 may be")
        with gateway.send("POST", COMPLETIONS, asked("a", "b", stream=True)) as answer:
            assert answer.status == 200


def test_each_further_prompt_counts_as_a_request(redis_url: str, herd: Herd, stand_in: StandIn) -> None:
    key = run_dialogue(herd.redis, create_key("many", "default", KeyRole.PRODUCER))
    shown = {"Authorization": f"Bearer {key}"}
    with GatewayThread(redis_url, key_rate=0.5) as gateway:
        assert gateway.ask("POST", COMPLETIONS, asked(*map(str, range(20))), shown).status == 200
        found = gateway.ask("POST", COMPLETIONS, asked("a"), shown)
        assert (found.status, found.error["code"]) == (429, "rate_limit_exceeded")
        assert int(found.headers["retry-after"]) > 4


@pytest.mark.parametrize(
    ("key_rate", "path", "body"),
    [
        (1, COMPLETIONS, asked("a", "b", metadata={"of_openai": "x" * 1_000_000})),
        (1, "/v1/embeddings", {"model": "of/a-hub", "input": "a", "user": "x" * 1_000_000}),
        (0.05, "/v1/jobs", {"prompt": "a", "model": "tales"}),
    ],
)
def test_what_a_request_itself_costs_is_no_reason_to_refuse_it(
    redis_url: str, herd: Herd, stand_in: StandIn, key_rate: float, path: str, body: dict[str, Any]
) -> None:
    """It was let in, and leaves a debt; else it would never come through, however long its client waits."""
    key = run_dialogue(herd.redis, create_key("many", "default", KeyRole.PRODUCER))
    shown = {"Authorization": f"Bearer {key}"}
    with GatewayThread(redis_url, key_rate=key_rate) as gateway:
        assert gateway.ask("POST", path, body, shown).status in (200, 202, 404)
        found = gateway.ask("POST", path, body, shown)
        assert (found.status, found.error["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.long
def test_a_key_bounds_the_priority_of_its_jobs(gateway: GatewayThread, herd: Herd, redis: Redis) -> None:
    key = run_dialogue(redis, create_key("bulk", "default", KeyRole.PRODUCER, max_priority=-1))
    shown = {"Authorization": f"Bearer {key}", "X-On-Disconnect": "stay"}
    for path, body, status in (
        (COMPLETIONS, asked("a"), 400),
        (COMPLETIONS, asked("a", priority=0), 400),
        ("/v1/jobs", {"prompt": "a", "model": "tales"}, 422),
    ):
        found = gateway.ask("POST", path, body, shown)
        assert (found.status, found.error["param"]) == (status, "priority")
        assert "at most -1, which is all that this key allows, got 0" in found.error["message"]
    with gateway.send("POST", COMPLETIONS, asked("a", priority=-3, stream=True), shown) as answer:
        body = json.loads(herd.field(str(answer.getheader("X-Job-Id")), "body"))
    assert body["priority"] == -3
    assert gateway.ask("POST", COMPLETIONS, asked("a", priority=11)).error["param"] == "priority"


def test_the_end_of_a_whole_answer_is_that_of_all(gateway: GatewayThread, herd: Herd) -> None:
    connection = gateway.connect()
    connection.request("POST", COMPLETIONS, json.dumps(asked("a", "b", n=1)))
    wait_until(lambda: herd.redis.llen(QUEUE) == 2, "submitted")
    first, second = sorted(one.decode() for one in herd.redis.zrange(herd.ledger.key("pending"), 0, -1))
    for job_id in (second, first):
        herd.claimed(job_id)
        herd.emit("one", started(job_id), token(job_id, 2, 0), end(job_id, 3, 1))
    answer = json.loads(connection.getresponse().read())
    assert [(one["index"], one["text"]) for one in answer["choices"]] == [(0, "<2.1>"), (1, "<2.1>")]
    assert answer["usage"] is None
