"""A worker in front of a server that dies: nothing is lost or comes twice, and who kills it fails alone."""

import os
import signal

import pytest
from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.events import End, Event, Token
from llama_herd.tasks.protocol.job_fields import SamplingFields
from tests.chaos.harness.patience import wait_until
from tests.stand_in import StandIn
from tests.worker.foreign.conftest import NewServer, NewWorker

pytestmark = [pytest.mark.redis, pytest.mark.worker]

GREEDY: SamplingFields = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
NUM_JOBS = 5
#: Seconds between two tokens of a server: of one that is lost amid its jobs, of one that goes on with them.
SLOW_S, FAST_S = 0.2, 0.01


def ids_of(events: list[Event]) -> list[int]:
    """The ids of a stream, which are dense, with one end behind them."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    tokens = [event for event in events if isinstance(event, Token)]
    ids: list[int] = []
    for token in tokens:
        assert token.i == len(ids)
        ids += token.ids
    assert [type(event) for event in events].count(End) == 1
    assert isinstance(events[-1], End)
    return ids


@pytest.fixture
def client(redis_url: str) -> Client:
    return Client(redis_url)


def submit_all(client: Client, *prompts: str) -> list[str]:
    return [client.submit(prompt=prompt, sampling=GREEDY) for prompt in prompts]


def num_deaths(redis: Redis, job: str) -> int:
    return int(redis.hget(Ledger().job_key(job), "deaths") or 0)


def prompts_of(num: int) -> list[str]:
    return [f"Tale {number} begins" for number in range(num)]


def start_again(server: StandIn) -> None:
    """Kill it, if it lives, and start a fast one in its place."""
    server.kill()
    server.options["step_s"] = FAST_S
    server.start()


def test_a_killed_server_s_jobs_go_on_behind_what_is_recorded(
    kind: str, client: Client, new_server: NewServer, new_worker: NewWorker
) -> None:
    server = new_server(step_s=SLOW_S)
    new_worker(kind, server, slots=NUM_JOBS)
    jobs = submit_all(client, *prompts_of(NUM_JOBS))
    wait_until(lambda: all(client.job(job).tokens >= 8 for job in jobs), "all jobs run")
    start_again(server)
    ids = [ids_of(list(client.stream(job))) for job in jobs]
    assert {client.result(job).attempts for job in jobs} == {2}
    quiet = submit_all(client, *prompts_of(NUM_JOBS))
    assert [ids_of(list(client.stream(job))) for job in quiet] == ids


def test_an_output_that_the_server_has_ended_is_not_asked_for_again(
    kind: str, client: Client, new_server: NewServer, new_worker: NewWorker
) -> None:
    server = new_server(step_s=SLOW_S)
    new_worker(kind, server, slots=1)
    num_ids = {"vllm": 7, "llama-server": 4 + 7}[kind]  # of one that is asked in chunks the second one ends
    job = client.submit(prompt="<end 6> A tale", sampling={"n": 2, "max_tokens": 60, "seed": 5})
    wait_until(lambda: client.job(job).tokens > num_ids, "the second output runs")
    start_again(server)
    events = [event for event in client.stream(job) if isinstance(event, Token)]
    ends = [(event.choice, event.finish_reason) for event in events if event.finish_reason]
    assert ends == [(0, "stop"), (1, "stop")]
    result = client.result(job)
    assert result.attempts == 2
    assert len((result.choices or ())[0].ids) == num_ids
    assert [one.text.count("\ufffd") for one in result.choices or ()] == [1, 1]


def test_while_the_server_is_away_jobs_stay_and_none_is_taken(
    kind: str, client: Client, redis: Redis, new_server: NewServer, new_worker: NewWorker
) -> None:
    server = new_server(step_s=SLOW_S)
    new_worker(kind, server, slots=NUM_JOBS, lease_ms=500)
    jobs = submit_all(client, *prompts_of(2))
    wait_until(lambda: all(client.job(job).tokens >= 8 for job in jobs), "both jobs run")
    server.kill()
    wait_until(lambda: client.status().workers[0].state == "away", "the worker tells of it")
    wait_until(lambda: not redis.info("clients")["blocked_clients"], "it waits for no message")
    (later,) = submit_all(client, "A later tale")
    wait_until(lambda: num_deaths(redis, jobs[0]) == 1, "the death is counted")
    until = client.status().workers[0].beat_ms + 2000
    wait_until(lambda: client.status().workers[0].beat_ms > until, "four leases are over")
    assert [client.job(job).state for job in (*jobs, later)] == ["running", "running", "queued"]
    start_again(server)
    for job in (*jobs, later):
        assert len(ids_of(list(client.stream(job)))) == GREEDY["max_tokens"]


@pytest.mark.long
def test_jobs_are_given_back_when_the_server_stays_away(
    client: Client, new_server: NewServer, new_worker: NewWorker
) -> None:
    server = new_server(step_s=SLOW_S)
    new_worker("vllm", server, engine_away_s=1)
    (job,) = submit_all(client, "A tale")
    wait_until(lambda: client.job(job).tokens >= 8, "the job runs")
    os.kill(server.process.pid, signal.SIGSTOP)
    wait_until(lambda: client.status().workers[0].state == "away", "the worker tells of it")
    wait_until(lambda: client.job(job).state == "queued", "the job is given back")
    os.kill(server.process.pid, signal.SIGCONT)
    assert len(ids_of(list(client.stream(job)))) == GREEDY["max_tokens"]


def test_a_job_that_kills_its_server_three_times_fails_alone(
    kind: str, client: Client, new_server: NewServer, new_worker: NewWorker
) -> None:
    server = new_server(step_s=0.01)
    new_worker(kind, server, slots=NUM_JOBS)
    poison = client.submit(prompt="Once <die 6> upon", sampling=GREEDY)
    jobs = submit_all(client, *prompts_of(NUM_JOBS - 1))
    for _ in range(3):
        server.wait()
        server.start()
    failure = client.result(poison).error
    assert failure is not None
    assert failure.code == "poisoned"
    for job in jobs:
        assert len(ids_of(list(client.stream(job)))) == GREEDY["max_tokens"]
    assert server.num_starts == 4


def test_a_worker_waits_for_a_server_that_is_not_there_yet(
    kind: str, client: Client, new_server: NewServer, new_worker: NewWorker
) -> None:
    server = new_server(loading_s=1.5)
    new_worker(kind, server)
    (job,) = submit_all(client, "A tale")
    assert len(ids_of(list(client.stream(job)))) == GREEDY["max_tokens"]
