"""Our own endpoints over plain HTTP, with a worker played by hand."""

from urllib.parse import quote, urljoin

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.client.job_cancel import forget_stale_messages
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.protocol.events import parse_event
from tests.reply import Reply
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import FAILURE, JOB as HERD_JOB, Herd, end, started, token

pytestmark = pytest.mark.redis

JOB = {"prompt": "the secret prompt", "sampling": {"max_tokens": 4}}


def submitted(gateway: GatewayThread, **headers: str) -> Reply:
    found = gateway.ask("POST", "/v1/jobs", JOB, headers)
    assert found.status == 202
    return found


def run_to_its_end(herd: Herd, job_id: str) -> None:
    herd.claimed(job_id)
    herd.emit("one", started(job_id), token(job_id, 2, 0), token(job_id, 3, 1), end(job_id, 4, 2))


def test_a_job_is_accepted_and_says_where_it_is(gateway: GatewayThread, herd: Herd) -> None:
    found = submitted(gateway)
    job_id = found.json["id"]
    place = urljoin("/v1/jobs", found.headers["location"])
    assert place == f"/v1/jobs/{job_id}"
    assert found.json["events"] == f"/v1/jobs/{job_id}/events"
    assert urljoin("/below/v1/jobs", found.headers["location"]) == f"/below{place}"
    shown = gateway.ask("GET", place).json
    assert (shown["state"], shown["position"], shown["result"]) == ("queued", 1, None)
    run_to_its_end(herd, job_id)
    shown = gateway.ask("GET", place).json
    assert (shown["state"], shown["position"], shown["num_tokens"]) == ("done", None, 2)
    assert shown["result"]["text"] == "<2.1><3.1>"


def test_a_late_job_ends_though_no_worker_is_up(gateway: GatewayThread, herd: Herd) -> None:
    for job_id in "ab":
        herd.submit(job_id, HERD_JOB.model_copy(update={"deadline_ms": 1}))
    assert gateway.ask("GET", "/v1/jobs/a").json["result"]["finish_reason"] == "deadline"
    with gateway.send("GET", "/v1/jobs/b/events") as answer:
        assert [one.json["finish_reason"] for one in events_of(answer)] == ["deadline"]


def test_a_key_names_a_job(gateway: GatewayThread, herd: Herd) -> None:
    key = {"Idempotency-Key": "order 7"}
    assert submitted(gateway, **key).json == submitted(gateway, **key).json
    other = gateway.ask("POST", "/v1/jobs", {"prompt": "another"}, key)
    assert (other.status, other.error["code"]) == (409, "job_conflict")


def test_a_job_s_wrong_fields_are_named(gateway: GatewayThread, herd: Herd) -> None:
    found = gateway.ask("POST", "/v1/jobs", {"prompt": "a", "sampling": {"top_p": 2}, "tenant": "other"})
    assert (found.status, found.error["code"]) == (422, "invalid_job")
    assert "sampling.top_p" in found.error["message"]
    assert "tenant" in found.error["message"]


def test_events_have_the_numbers_to_go_on_from(gateway: GatewayThread, herd: Herd) -> None:
    job_id = submitted(gateway).json["id"]
    place = f"/v1/jobs/{job_id}/events"
    with gateway.send("GET", place) as answer:
        events = events_of(answer)
        queued = next(events)
        assert (queued.name, queued.id, queued.json["position"]) == ("queued", None, 1)
        run_to_its_end(herd, job_id)
        found = list(events)
    assert [one.id for one in found] == [event.cursor for event in herd.events(job_id)]
    assert [one.name for one in found] == ["started", "token", "token", "end"]
    assert [parse_event(one.data) for one in found] == herd.events(job_id)
    with gateway.send("GET", place, headers={"Last-Event-ID": "2"}) as answer:
        assert list(events_of(answer)) == found[2:]
    with gateway.send("GET", f"{place}?after={found[2].id}") as answer:
        assert list(events_of(answer)) == found[3:]
    for last in ("4", herd.events(job_id)[-1].cursor, "5"):
        assert gateway.ask("GET", place, headers={"Last-Event-ID": last}).status == 204


@pytest.mark.long
def test_the_place_is_told_as_it_changes(gateway: GatewayThread, herd: Herd) -> None:
    herd.submit("0")
    job_id = submitted(gateway).json["id"]
    with gateway.send("GET", f"/v1/jobs/{job_id}/events") as answer:
        events = events_of(answer)
        assert next(events).json == {"type": "queued", "position": 2, "estimated_wait_s": None}
        herd.claimed("0")
        assert next(events).json["position"] == 1


@pytest.mark.long
def test_a_silent_stream_sends_comments(gateway: GatewayThread, herd: Herd) -> None:
    job_id = submitted(gateway).json["id"]
    herd.claimed(job_id)
    with gateway.send("GET", f"/v1/jobs/{job_id}/events") as answer:
        assert [answer.readline() for _ in range(3)] == [b"retry: 1000\n", b":\n", b":\n"]


def test_a_silent_stream_ends_when_its_gateway_does(redis_url: str, herd: Herd) -> None:
    """Nothing comes by which it would notice, and its gateway could wait for it for an hour."""
    with GatewayThread(redis_url, heartbeat_s=3600, grace_s=3600) as gateway:
        answer = gateway.send("GET", f"/v1/jobs/{submitted(gateway).json['id']}/events")
        assert next(events_of(answer)).name == "queued"
    with answer:
        assert answer.read() == b""  # it is whole


def test_who_asks_for_the_head_of_a_stream_waits_for_nothing(gateway: GatewayThread, herd: Herd) -> None:
    place = f"/v1/jobs/{submitted(gateway).json['id']}/events"
    found = gateway.ask("HEAD", place)
    assert (found.status, found.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert gateway.context.concurrency.num_taken == 0


@pytest.mark.parametrize(
    "number", ["-1", "x", "9" * 16, "²", "1-", "-0123abcd", "1-0123abcd9", "0-0123abcd", "01-0123abcd"]
)
def test_a_wrong_number_is_refused(gateway: GatewayThread, herd: Herd, number: str) -> None:
    place = f"/v1/jobs/{submitted(gateway).json['id']}/events"
    headers = {"Last-Event-ID": number.encode("utf-8").decode("latin-1")}
    answers = gateway.ask("GET", place, headers=headers), gateway.ask("GET", f"{place}?after={quote(number)}")
    assert [one.status for one in answers] == [400, 400]
    assert [one.error["param"] for one in answers] == ["Last-Event-ID", "after"]


def test_a_job_ends_early_and_is_forgotten(gateway: GatewayThread, herd: Herd) -> None:
    job_id = submitted(gateway).json["id"]
    place = f"/v1/jobs/{job_id}"
    herd.claimed(job_id)
    assert gateway.ask("POST", f"{place}/purge").error["code"] == "job_running"
    assert gateway.ask("DELETE", place).json == {"id": job_id, "cancellation": "asked"}
    herd.emit("one", end(job_id, 1, 0, finish_reason="cancelled"))
    assert gateway.ask("DELETE", place).json["cancellation"] == "finished"
    assert gateway.ask("POST", f"{place}/purge").status == 204
    assert gateway.ask("GET", place).status == 404


def test_a_purge_of_what_never_was_leaves_nothing(gateway: GatewayThread, redis: Redis) -> None:
    assert gateway.ask("POST", "/v1/jobs/nothing/purge").status == 404
    assert redis.dbsize() == 0


@pytest.mark.parametrize("name", ["nothing", "a%20b", "x" * 129, "%00"])
def test_what_is_not_there_is_not_found(gateway: GatewayThread, name: str) -> None:
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", ""), ("POST", "/purge")):
        assert gateway.ask(method, f"/v1/jobs/{name}{path}").status == 404


def test_a_job_of_openai_s_door_is_one_of_ours(gateway: GatewayThread, stand_in: StandIn) -> None:
    asked = {"model": "tales", "prompt": "x", "stream": True}
    with gateway.send("POST", "/v1/completions", asked) as answer:
        job_id = answer.getheader("X-Job-Id")
        first = next(events_of(answer))
    with gateway.send("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "1"}) as answer:
        found = list(events_of(answer))
    assert found[0].number == first.number
    assert found[-1].name == "end"


def test_jobs_that_have_ended_are_listed_page_by_page(gateway: GatewayThread, herd: Herd) -> None:
    ids = ["one", "three", "two"]  # of jobs that end in one millisecond the names tell the order
    for job_id in ids:
        herd.submit(job_id)
        run_to_its_end(herd, job_id)
    first = gateway.ask("GET", "/v1/jobs?limit=2").json
    assert [one["job_id"] for one in first["data"]] == [ids[2], ids[1]]
    assert first["has_more"] is True
    assert {one["state"] for one in first["data"]} == {"done"}
    rest = gateway.ask("GET", f"/v1/jobs?state=done&limit=2&after={ids[1]}").json
    assert ([one["job_id"] for one in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    assert gateway.ask("GET", "/v1/jobs?state=failed").json["data"] == []
    assert gateway.ask("GET", "/v1/jobs?state=queued").json["data"] == []
    assert gateway.ask("GET", "/v1/jobs?metadata=a=1&since_s=60&model=other").json["data"] == []


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("state=over", "must be one of delayed, queued"),
        ("since_s=soon", "must be a number of seconds"),
        *((f"since_s={text}", "must be 0 to 315360000 seconds") for text in ("nan", "inf", "-1", "1e308")),
        ("metadata=order", "must be name=value"),
        ("limit=0", "must be a number from 1 to 500"),
        ("after=nobody", "no job nobody is among"),
        ("state=running&after=a", "jobs that run or wait are not chosen by it"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(gateway: GatewayThread, query: str, complaint: str) -> None:
    found = gateway.ask("GET", f"/v1/jobs?{query}")
    assert found.status == 400
    assert complaint in found.error["message"]


def test_a_job_tells_its_moments_and_to_operators_what_it_asks(gateway: GatewayThread, herd: Herd) -> None:
    job_id = submitted(gateway).json["id"]
    waiting = gateway.ask("GET", f"/v1/jobs/{job_id}").json
    assert [one["what"] for one in waiting["timeline"]] == ["queued"]
    run_to_its_end(herd, job_id)
    ended = gateway.ask("GET", f"/v1/jobs/{job_id}").json
    moments = [one["what"] for one in ended["timeline"]]
    assert moments == ["started", "queued", "claimed", "ended"]  # by its event it began in 1970
    assert ended["job"]["prompt"] == JOB["prompt"]
    assert ended["job"]["sampling"]["max_tokens"] == 4
    assert ended["ended_ms"] == ended["timeline"][-1]["at_ms"]


def test_a_job_that_was_put_back_tells_when_it_is_tried_again(gateway: GatewayThread, herd: Herd) -> None:
    job_id = submitted(gateway).json["id"]
    herd.claimed(job_id)
    herd.emit("one", started(job_id))
    herd.put_back(job_id, seq=1)
    waiting = gateway.ask("GET", f"/v1/jobs/{job_id}").json
    assert (waiting["state"], waiting["retries"], waiting["retries_left"]) == ("queued", 1, 2)
    assert waiting["retry_error"] == FAILURE.model_dump()
    assert waiting["retry_ms"] == waiting["timeline"][-1]["at_ms"]
    gateway.ask("DELETE", f"/v1/jobs/{job_id}")
    ended = gateway.ask("GET", f"/v1/jobs/{job_id}").json
    assert (ended["retries"], ended["retry_ms"], ended["timeline"][-1]["what"]) == (1, None, "ended")


def test_a_job_that_has_ended_runs_again_and_both_name_each_other(gateway: GatewayThread, herd: Herd) -> None:
    job_id = submitted(gateway).json["id"]
    refused = gateway.ask("POST", f"/v1/jobs/{job_id}/retry")
    assert (refused.status, refused.error["code"]) == (409, "job_running")
    run_to_its_end(herd, job_id)
    assert gateway.ask("GET", f"/v1/jobs/{job_id}").json["retried_as"] is None
    found = gateway.ask("POST", f"/v1/jobs/{job_id}/retry")
    assert (found.status, found.json["retry_of"]) == (202, job_id)
    place = urljoin(f"/v1/jobs/{job_id}/retry", found.headers["location"])
    assert place == f"/v1/jobs/{found.json['id']}"
    assert gateway.ask("POST", f"/v1/jobs/{job_id}/retry").json == found.json
    new = gateway.ask("GET", place).json
    assert (new["state"], new["job"]["metadata"]) == ("queued", {"retry_of": job_id})
    assert new["job"]["prompt"] == JOB["prompt"]
    assert gateway.ask("GET", f"/v1/jobs/{job_id}").json["retried_as"] == new["id"]


@pytest.mark.parametrize("name", ["nothing", "1-1", "a%20b"])
def test_what_is_no_job_is_not_run_again(gateway: GatewayThread, name: str) -> None:
    assert gateway.ask("POST", f"/v1/jobs/{name}/retry").status == 404


def test_a_queue_that_nobody_serves_is_cleared_and_told_no_more(gateway: GatewayThread, herd: Herd) -> None:
    """Also of the messages of jobs that ended one by one."""
    jobs = [gateway.ask("POST", "/v1/jobs", {**JOB, "model": "nobody"}).json["id"] for _ in range(3)]
    gateway.ask("DELETE", f"/v1/jobs/{jobs[0]}")
    kept = gateway.ask("POST", "/v1/jobs", JOB).json["id"]
    gateway.forget()
    assert [one["model"] for one in gateway.ask("GET", "/v1/herd").json["queues"]] == ["nobody", "tales"]
    found = gateway.ask("POST", "/v1/queues/nobody/clear")
    assert found.json == {"model": "nobody", "cancelled": 2}
    gateway.forget()
    assert [one["model"] for one in gateway.ask("GET", "/v1/herd").json["queues"]] == ["tales"]
    assert gateway.ask("GET", f"/v1/jobs/{kept}").json["state"] == "queued"


def test_a_queue_of_another_tenant_is_not_cleared(gateway: GatewayThread, herd: Herd) -> None:
    """Its name is that of a model with a colon."""
    stale = b'{"properties": {"delivery_tag": "a:1:1"}}'
    herd.redis.lpush("herd.acme:tales", stale)
    found = gateway.ask("POST", "/v1/queues/acme:tales/clear")
    assert (found.status, found.error["param"]) == (400, "model")
    assert run_dialogue(herd.redis, forget_stale_messages(herd.ledger, "acme:tales")) == 0
    assert herd.redis.lrange("herd.acme:tales", 0, -1) == [stale]
