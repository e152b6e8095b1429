"""Batches over HTTP, from upload to answers, with a worker that has no model."""

import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.client.batch.window import LOOK_AHEAD
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.batch_api import ENDED, BatchApi, lines, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


def names(answers: list[dict[str, Any]]) -> list[str]:
    return sorted(answer["custom_id"] for answer in answers)


def test_every_row_is_answered_once(api: BatchApi, stand_in: StandIn) -> None:
    asked = rows(300)
    batch = api.end_of(api.begin(asked, metadata={"whose": "ours"}))
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 300, "completed": 300, "failed": 0}
    assert (batch["error_file_id"], batch["metadata"]) == (None, {"whose": "ours"})
    answers = api.content(batch["output_file_id"])
    assert names(answers) == names(asked)
    usage = [answer["response"]["body"]["usage"] for answer in answers]
    assert batch["usage"]["input_tokens"] == sum(one["prompt_tokens"] for one in usage)
    assert batch["usage"]["output_tokens"] == sum(one["completion_tokens"] for one in usage)
    times = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed", "expires")]
    assert times == sorted(times)


def test_rows_that_fail_are_in_a_file_of_their_own(
    gateway: GatewayThread, api: BatchApi, redis_url: str
) -> None:
    def verdict(job_id: str, job: Any) -> Failure | None:
        return Failure(code="model_error", message="no", retriable=False) if "3" in job.prompt else None

    with StandIn(redis_url, verdict=verdict):
        batch = api.end_of(api.begin(rows(20)))
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 20, "completed": 18, "failed": 2}
    errors = api.content(batch["error_file_id"])
    assert names(errors) == ["c13", "c3"]
    assert {error["error"]["code"] for error in errors} == {"model_error"}
    assert len(api.content(batch["output_file_id"])) == 18


BAD_LINES = {
    "not JSON": "{",
    "no object": "[]",
    "method": json.dumps(rows(1)[0] | {"method": "GET"}),
    "url": json.dumps(rows(1)[0] | {"url": "/v1/chat/completions", "body": {"messages": []}}),
    "body": json.dumps(rows(1)[0] | {"body": {"prompt": "x", "temperature": 9}}),
    "custom_id": json.dumps({key: value for key, value in rows(1)[0].items() if key != "custom_id"}),
    "name twice": json.dumps(rows(1)[0]),
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_no_row_runs_where_one_is_wrong(api: BatchApi, stand_in: StandIn, bad: str) -> None:
    batch = api.end_of(api.begin([*rows(3), BAD_LINES[bad], "", "{"]))
    assert (batch["status"], batch["output_file_id"], batch["error_file_id"]) == ("failed", None, None)
    assert [error["line"] for error in batch["errors"]["data"]] == [4, 6]
    assert all(error["message"] and error["code"] == "invalid_line" for error in batch["errors"]["data"])
    assert batch["failed_at"]
    assert not stand_in.answered


@pytest.mark.long
def test_what_is_told_of_a_bad_line_is_bounded(api: BatchApi) -> None:
    """All of it is kept in Redis for a month."""
    long = rows(1)[0] | {f"field{number}" * 8: 1 for number in range(200)}
    errors = api.end_of(api.begin([long] * 150))["errors"]["data"]
    assert [error["line"] for error in errors] == list(range(1, 101))
    assert all(len(error["message"]) <= 400 for error in errors)


def test_the_endpoint_of_a_row_is_that_of_the_batch(api: BatchApi, stand_in: StandIn) -> None:
    other = {"custom_id": "x", "messages": [{"role": "user", "content": "hi"}]}
    (error,) = api.end_of(api.begin([*rows(1), other]))["errors"]["data"]
    assert (error["line"], error["param"]) == (2, "url")
    assert "/v1/chat/completions" in error["message"]


def test_rows_of_the_responses_api_have_its_objects(api: BatchApi, stand_in: StandIn) -> None:
    row = {
        "custom_id": "x",
        "method": "POST",
        "url": "/v1/responses",
        "body": {"input": "hi", "model": "tales"},
    }
    batch = api.end_of(api.begin([row], endpoint="/v1/responses"))
    (line,) = api.ask("GET", f"/v1/files/{batch['output_file_id']}/content").raw.splitlines()
    found = json.loads(line)["response"]["body"]
    assert (found["object"], found["status"], found["model"]) == ("response", "incomplete", "tales")
    assert found["output"][0]["content"][0]["text"]


def test_an_empty_file_is_told(api: BatchApi, stand_in: StandIn) -> None:
    (error,) = api.end_of(api.begin(["", " "]))["errors"]["data"]
    assert error["code"] == "empty_file"


def test_what_is_under_way_ends_with_a_cancelled_batch(api: BatchApi, stand_in: StandIn) -> None:
    stand_in.hold()
    batch_id = api.begin(rows(50))
    wait_until(lambda: api.show(batch_id)["status"] == "in_progress", "it runs")
    assert api.cancel(batch_id).json["status"] == "cancelling"
    batch = api.end_of(batch_id)
    assert batch["status"] == "cancelled"
    errors = api.content(batch["error_file_id"])
    assert len(errors) + len(api.content(batch["output_file_id"])) == 50
    assert {error["error"]["code"] for error in errors} == {"batch_cancelled"}
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    again = api.cancel(batch_id)
    assert (again.status, again.error["code"]) == (409, "batch_over")


def test_a_batch_whose_time_is_over_keeps_what_is_done(api: BatchApi, stand_in: StandIn) -> None:
    batch_id = api.begin(rows(400), completion_window="2s")
    wait_until(
        lambda: len(stand_in.answered) >= 100 or api.show(batch_id)["status"] in ENDED,
        "some are done, or its time is over",
    )
    stand_in.hold()
    batch = api.end_of(batch_id)
    done, undone = api.content(batch["output_file_id"]), api.content(batch["error_file_id"])
    if batch["status"] == "completed":  # on a machine so fast that nothing was left
        assert len(done) == 400
        return
    assert batch["status"] == "expired"
    assert names(done + undone) == names(rows(400))
    assert {error["error"]["code"] for error in undone} == {"batch_expired"}
    assert batch["request_counts"] == {"total": 400, "completed": len(done), "failed": len(undone)}


def test_the_same_request_under_the_same_name_is_the_same_batch(api: BatchApi, stand_in: StandIn) -> None:
    file_id = api.upload(lines(rows(2))).json["id"]
    first, again = (api.create(file_id, "order 7") for _ in range(2))
    assert first.json["id"] == again.json["id"]
    other = api.create(file_id, "order 7", completion_window="1h")
    assert (other.status, other.error["code"]) == (409, "job_conflict")
    api.end_of(first.json["id"])
    assert api.ask("GET", "/v1/batches").json["data"][0]["id"] == first.json["id"]


def test_the_same_request_by_a_newer_key_is_the_same_batch(
    redis: Redis, gateway: GatewayThread, stand_in: StandIn
) -> None:
    old, new = (
        BatchApi(lambda: gateway.url, run_dialogue(redis, create_key(name, "default", KeyRole.PRODUCER)))
        for name in ("old", "new")
    )
    file_id = old.upload(lines(rows(2))).json["id"]
    first = old.create(file_id, "order 7").json
    again = new.create(file_id, "order 7")
    assert (again.status, again.json["id"]) == (200, first["id"])
    assert new.create(file_id, "order 7", metadata={"a": "b"}).status == 409
    old.end_of(first["id"])


def test_batches_are_listed_by_pages(api: BatchApi, stand_in: StandIn) -> None:
    file_id = api.upload(lines(rows(1))).json["id"]
    made = [api.create(file_id).json["id"] for _ in range(5)]
    assert api.ids("/v1/batches?limit=2") == made[::-1]
    for batch_id in made:
        api.end_of(batch_id)


def test_herd_status_shows_a_batch_and_ends_it(api: BatchApi, stand_in: StandIn, redis_url: str) -> None:
    stand_in.hold()
    batch_id = api.begin(rows(30))
    with Client(redis_url) as client:
        wait_until(lambda: [one for one in client.batches() if one.is_running], "it is reported")
        (status,) = client.batches()
        assert (status.run_id, status.input_name, status.num_rows) == (batch_id[6:], "in.jsonl", 30)
        assert client.end_batch(status.run_id)
    assert api.end_of(batch_id)["status"] == "cancelled"


WRONG: dict[str, dict[str, Any]] = {
    "endpoint": {"endpoint": "/v1/moderations"},
    "completion_window": {"completion_window": "tomorrow"},
    "metadata": {"metadata": {"a": 1}},
    "output_expires_after.seconds": {"output_expires_after": {"anchor": "created_at", "seconds": 9}},
    "colour": {"colour": "blue"},
    "input_file_id": {"input_file_id": 7},
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_named(api: BatchApi, field: str) -> None:
    answer = api.create("file-" + 24 * "0", **WRONG[field])
    assert (answer.status, answer.error["param"]) == (400, field)


def test_a_file_that_is_not_there_is_told(api: BatchApi) -> None:
    for file_id in ("file-" + 24 * "0", "nonsense", "../../etc/passwd"):
        answer = api.create(file_id)
        assert (answer.status, answer.error["param"]) == (404, "input_file_id")
    assert api.ask("GET", "/v1/batches/batch_" + 24 * "0").status == 404
    assert api.ask("GET", "/v1/batches/x").status == 404
    assert api.cancel("batch_" + 24 * "0").status == 404


def test_answers_are_no_input(api: BatchApi, stand_in: StandIn) -> None:
    output = api.end_of(api.begin(rows(1)))["output_file_id"]
    answer = api.create(output)
    assert (answer.status, answer.error["param"]) == (400, "input_file_id")


def test_nothing_of_an_ended_batch_is_left_but_its_files(
    api: BatchApi, stand_in: StandIn, redis: Redis, gateway: GatewayThread
) -> None:
    batch_id = api.begin(rows(20))
    batch = api.end_of(batch_id)
    folder = Path(gateway.context.settings.gateway_files) / "default"
    wait_until(lambda: not (folder / batch_id).exists(), "its parts are deleted")
    assert {batch["input_file_id"], batch["output_file_id"]} <= {path.name for path in folder.iterdir()}
    (due,) = redis.keys("herd:batches@*") or [b"none"]
    wait_until(lambda: not redis.exists(due), "nobody has to see to it")
    assert all(redis.hgetall(key).keys() == {b"state"} for key in redis.keys("herd:default:{batch-*"))
    assert not redis.hexists("herd:default:quota", "rows")


def test_batches_of_a_tenant_have_even_shares(api: BatchApi, redis_url: str) -> None:
    with StandIn(redis_url, slots=4) as worker:
        worker.hold()
        batch_ids = [api.begin(rows(150)) for _ in range(3)]
        for batch_id in batch_ids:
            wait_until(lambda: api.show(batch_id)["status"] == "in_progress", "it runs")  # noqa: B023
        with Client(redis_url) as client:
            wait_until(lambda: client.status().pending >= 3 * (4 + LOOK_AHEAD), "all windows are full")
        worker.go_on()
        for batch_id in batch_ids:
            api.end_of(batch_id)
        answered = worker.answered[:300]
    shares = [sum(batch_id[6:] in job_id for job_id in answered) for batch_id in batch_ids]
    assert min(shares) > 30, shares  # of 100: on a busy machine one may be fed late


def test_an_interactive_job_waits_for_no_row_that_has_not_begun(api: BatchApi, redis_url: str) -> None:
    with StandIn(redis_url, slots=4) as worker, Client(redis_url) as client:
        worker.hold()
        batch_id = api.begin(rows(200))
        wait_until(lambda: client.status().pending >= 4 + LOOK_AHEAD, "the window is full")
        job_id = client.submit(prompt="quick", model="tales")
        worker.go_on()
        client.result(job_id, timeout_s=60)
        assert worker.answered.index(job_id) <= 4
        assert api.end_of(batch_id)["request_counts"]["completed"] == 200
