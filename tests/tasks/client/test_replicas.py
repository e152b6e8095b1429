"""Submitting to a Redis with replicas: a job is accepted once they have it, or nobody knows its state."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from redis import Redis

from llama_herd.errors import InvalidJob, JobConflict, JobNotFound, NotReplicated, RedisUnavailable
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.proxy import FaultProxy
from tests.cli.herd_command import invoke
from tests.local.watched_redis import WatchedRedis
from tests.tasks.herd import commands

pytestmark = [pytest.mark.redis, pytest.mark.program]


@pytest.fixture
def primary() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as primary:
        yield primary


@pytest.fixture
def watched(primary: EmbeddedRedis) -> Iterator[WatchedRedis]:
    with WatchedRedis(primary) as watched:
        yield watched


def settings(watched: WatchedRedis, timeout_s: float = 0.3) -> Settings:
    return Settings.read(redis_url=watched.url, replicas=1, replicas_timeout_s=timeout_s, model_name="m")


#: For jobs that a replica is to have, however slow it is.
PATIENT_S = 4.0


def cut_off(watched: WatchedRedis, primary: EmbeddedRedis) -> None:
    """From now on the replica gets nothing."""
    os.kill(watched.replica.pid, signal.SIGSTOP)
    with Redis(port=primary.port) as redis:
        redis.execute_command("CLIENT", "KILL", "TYPE", "replica")


def test_what_no_replica_has_is_not_accepted_and_is_safe_to_repeat(
    watched: WatchedRedis, primary: EmbeddedRedis
) -> None:
    """By both clients, and also where the job was there before: then nothing is written the second time."""
    with (
        Client(settings=settings(watched)) as client,
        Client(settings=settings(watched, PATIENT_S)) as patient,
    ):
        kept = patient.submit(prompt="x")
        cut_off(watched, primary)
        for _ in range(2):
            with pytest.raises(NotReplicated, match=r"0 of 1 replicas have it after 0.3 s") as caught:
                client.submit(prompt="x", job_id="lost")
        assert caught.value.job_id == "lost"

        async def again() -> None:
            async with AsyncClient(settings=settings(watched)) as other:
                await other.submit(prompt="x", job_id="lost")

        with pytest.raises(NotReplicated):
            asyncio.run(again())
        variables = {"HERD_REDIS_URL": watched.url, "HERD_REPLICAS": "1", "HERD_REPLICAS_TIMEOUT_S": "0.3"}
        assert "could lose it. Fix: submit exactly" in invoke("generate", "hi", **variables).stderr

        primary.stop()
        os.kill(watched.replica.pid, signal.SIGCONT)
        watched.wait_for_promotion()
        assert client.job(kept).job_id == kept
        with pytest.raises(JobNotFound):
            client.job("lost")
        watched.rejoin()
        accept(patient, "lost")
        assert client.job("lost").job_id == "lost"


def test_a_lot_waits_once_for_the_replicas_and_says_it_of_each_accepted_job(
    watched: WatchedRedis, primary: EmbeddedRedis
) -> None:
    jobs = [{"prompt": "x", "job_id": "a"}, {"promt": "x"}, {"prompt": "x", "job_id": "b"}]
    with Client(settings=settings(watched, PATIENT_S)) as patient, Redis(port=primary.port) as redis:
        patient.submit(prompt="y", job_id="b")
        asked = commands(redis, lambda: submit_many(patient, jobs), by_scripts=False)
        assert sum(command.startswith("WAIT ") for command in asked) == 1
        assert submit_many(patient, jobs) == [None, InvalidJob, JobConflict]
    cut_off(watched, primary)
    with Client(settings=settings(watched)) as client:
        assert submit_many(client, jobs) == [NotReplicated, InvalidJob, JobConflict]


def submit_many(client: Client, jobs: list[dict[str, str]]) -> list[type | None]:
    """The kinds of their errors."""
    errors = [outcome.error for outcome in client.submit_many(jobs)]
    return [None if error is None else type(error) for error in errors]


def accept(client: Client, job_id: str) -> None:
    """A replica that has just come back needs a moment."""
    for _ in range(50):
        try:
            client.submit(prompt="x", job_id=job_id)
        except NotReplicated:
            continue
        return
    raise TimeoutError(job_id)


def test_sentinels_that_know_no_such_primary_are_named(watched: WatchedRedis) -> None:
    wrong = watched.url.replace("mymaster", "other")
    with (
        Client(wrong) as client,
        pytest.raises(RedisUnavailable, match=r"has no primary: .* check hosts and"),
    ):
        client.workers()
    with Redis(port=watched.sentinel.port) as sentinel:
        sentinel.acl_setuser("default", enabled=True, reset_passwords=True, passwords="+hunter2")
    with Client(watched.url) as client, pytest.raises(RedisUnavailable, match="HERD_SENTINEL_PASSWORD"):
        client.workers()
    with Client(settings=Settings.read(redis_url=watched.url, sentinel_password="hunter2")) as client:
        assert client.workers() == []


def test_a_sentinel_that_is_far_away_is_understood(watched: WatchedRedis) -> None:
    with FaultProxy(watched.sentinel.port) as line:
        line.delay_s = 0.3  # each way
        with Client(watched.url.replace(str(watched.sentinel.port), str(line.port))) as client:
            assert client.workers() == []
