"""What is told of each request."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.gateway.request_log import JsonLogFormatter
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.chaos.harness.patience import wait_until
from tests.logged import Logged, listening
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import Herd, end, started, token

pytestmark = pytest.mark.redis

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
JOB = {"prompt": "the secret prompt"}


@contextmanager
def told(gateway: GatewayThread, num: int = 1) -> Iterator[list[dict[str, Any]]]:
    """The lines of so many requests, once these are over."""
    lines: list[dict[str, Any]] = []
    with listening(logging.INFO) as logged:
        yield lines
        wait_until(lambda: len(requests(logged)) >= num, "the requests are told")
    lines += [json.loads(JsonLogFormatter().format(one)) for one in requests(logged)]
    assert "secret" not in json.dumps(lines)


def requests(logged: Logged) -> list[logging.LogRecord]:
    return [one for one in logged.records if one.name.endswith("request_log")]


def test_a_request_is_one_line(telling_gateway: GatewayThread, redis: Redis, herd: Herd) -> None:
    shown = {
        "Authorization": f"Bearer {run_dialogue(redis, create_key('billing', 'acme', KeyRole.PRODUCER))}"
    }
    with told(telling_gateway) as lines:
        job_id = telling_gateway.ask("POST", "/v1/jobs", JOB, {**shown, **TRACEPARENT}).json["id"]
    (line,) = lines
    assert line.pop("ms") > 0
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "llama_herd.tasks.gateway.request_log",
        "event": "request",
        "method": "POST",
        "route": "/v1/jobs",
        "status": 202,
        "key": "billing",
        "tenant": "acme",
        "job_id": job_id,
        "trace_id": TRACE,
        "error": None,
        "cause": None,
    }


def test_a_job_s_trace_is_that_of_its_request(telling_gateway: GatewayThread, herd: Herd) -> None:
    telling_gateway.ask("POST", "/v1/jobs", JOB, TRACEPARENT)
    telling_gateway.ask("POST", "/v1/jobs", JOB, {"traceparent": "nonsense"})
    second, first = herd.messages()[::-1][:2]
    assert json.loads(first)["headers"]["traceparent"] == TRACEPARENT["traceparent"]
    assert "traceparent" not in json.loads(second)["headers"]


@pytest.mark.parametrize(
    ("path", "body", "status", "error", "cause"),
    [
        ("/v1/completions", {**JOB, "model": "tales", "max_tokens": 0}, 400, "invalid_job", "max_tokens: "),
        ("/v1/completions", {**JOB, "a_secret_name": 1}, 400, "invalid_job", "?: not supported"),
        ("/v1/jobs", {**JOB, "sampling": {"top_p": 7}}, 422, "invalid_job", "sampling.top_p: "),
        ("/v1/completions", {**JOB, "model": "none"}, 404, "model_not_found", "Served are: tales"),
        ("/v1/jobs", b"{", 400, "invalid_json", "JSON"),
        ("/nowhere", {}, 404, "not_found", "route"),
    ],
)
def test_an_error_is_told_with_its_cause(
    telling_gateway: GatewayThread, herd: Herd, path: str, body: object, status: int, error: str, cause: str
) -> None:
    with told(telling_gateway) as lines:
        assert telling_gateway.ask("POST", path, body).status == status
    (line,) = lines
    assert (line["status"], line["error"], line["level"]) == (status, error, "info")
    assert cause in line["cause"]


@pytest.mark.long
def test_a_stream_that_fails_is_told_with_its_cause(telling_gateway: GatewayThread, herd: Herd) -> None:
    with told(telling_gateway) as lines:
        asked = {"model": "tales", "prompt": "x", "stream": True}
        with telling_gateway.send("POST", "/v1/completions", asked) as answer:
            job_id = answer.headers["X-Job-Id"]
            herd.claimed(job_id)
            herd.emit("one", started(job_id), token(job_id, 2, 0))
            events = events_of(answer)
            next(events)
            herd.emit("one", end(job_id, 3, 1, finish_reason="cancelled"))
            assert [event.name for event in events] == ["error"]
    (line,) = lines
    assert (line["status"], line["job_id"], line["error"]) == (200, job_id, "cancelled")
    assert line["level"] == "warning"


@pytest.mark.long
def test_an_outage_is_told_with_its_place() -> None:
    with EmbeddedRedis() as server, GatewayThread(server.url, request_log="errors") as gateway:
        server.stop()
        with told(gateway) as lines:
            gateway.ask("GET", "/health/live")
            gateway.ask("GET", "/v1/models")
    (line,) = lines
    assert (line["route"], line["status"], line["error"]) == ("/v1/models", 503, "queue_unavailable")
    assert "127.0.0.1" in line["cause"]


def test_it_can_be_switched_off(redis_url: str, herd: Herd) -> None:
    with GatewayThread(redis_url, request_log="off") as gateway, listening(logging.INFO) as logged:
        gateway.ask("POST", "/v1/jobs", JOB)
        gateway.ask("POST", "/v1/jobs", b"{")
        wait_until(lambda: not gateway.num_requests, "they are over")
    assert requests(logged) == []


def test_an_exception_is_told_without_its_words() -> None:
    try:
        raise ValueError("the secret prompt")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
        record = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "a task failed", None, info)
    line = json.loads(JsonLogFormatter().format(record))
    assert line["event"] == "a task failed"
    assert line["cause"].startswith(f"ValueError at {__file__}:")
    assert "secret" not in str(line)
