"""The client against a real Redis, with a thread that plays the worker."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from llama_herd.errors import InvalidJob, JobConflict, JobNotFound, QueueFull, RedisUnavailable, SettingsError
from llama_herd.tasks import AsyncClient, Client, GenerationJob, SamplingParams
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.client.tenant_status import Status, read_status
from llama_herd.tasks.ledger.answers import Cancellation
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.client.playing_worker import NUM_TOKENS, PlayingWorker
from tests.tasks.herd import QUEUE, Herd, end, started

pytestmark = pytest.mark.redis


def test_a_result_is_what_the_stream_says(client: Client, herd: Herd) -> None:
    job_id = client.submit(GenerationJob(prompt="x", sampling=SamplingParams(max_tokens=3)))
    PlayingWorker(herd, job_id).start()
    result = client.result(job_id, timeout_s=PATIENCE_S)
    assert (len(result.ids), result.finish_reason, result.seed) == (NUM_TOKENS, "stop", 7)
    assert result == client.result(job_id)


def test_who_watches_a_job_hears_each_new_place_and_then_the_recorded_events(
    client: Client, herd: Herd
) -> None:
    herd.submit("a")
    herd.submit("b")  # of one millisecond the names count
    watching = client.watch("b", timeout_s=30)
    assert next(watching) == Queued(position=2, estimated_wait_s=None)
    herd.claimed("a")
    second = next(watching)
    assert isinstance(second, Queued)
    assert second.position == 1
    herd.claimed("b")
    herd.emit("one", started("b"), end("b", 2, 0))
    assert list(watching) == list(client.stream("b")) == list(client.watch("b"))


def test_a_time_limit_tells_unknown_from_unfinished(client: Client, herd: Herd) -> None:
    with pytest.raises(JobNotFound, match="zz"):
        client.result("zz", timeout_s=0.05)
    job_id = client.submit(prompt="x")
    with pytest.raises(TimeoutError, match=job_id):
        client.result(job_id, timeout_s=0.05)
    herd.claim(job_id)
    herd.emit("one", started(job_id))
    with pytest.raises(TimeoutError, match=job_id):
        client.result(job_id, timeout_s=0)


def test_a_time_limit_has_the_name_that_celery_gives_it_too(client: Client) -> None:
    job_id = client.submit(prompt="x")
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        client.result(job_id, timeout=0.05)
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        list(client.stream(job_id, timeout=0.05))
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        list(client.watch(job_id, timeout=0.05))
    with pytest.raises(TypeError, match="give timeout_s or timeout"):
        client.result(job_id, timeout=1, timeout_s=1)


def test_a_result_that_nobody_will_write_is_an_error_at_once(client: Client, redis_url: str) -> None:
    """Whoever waits for ever does so in vain: the test's own time limit would end it."""
    for name in ("never", "purged"):
        if name == "purged":
            client.submit(prompt="x", job_id=name)
            client.purge(name)
        told = f"no job {name}: .* HERD_STREAM_TTL_S ago, or .* Fix: .*wait=True"
        with pytest.raises(JobNotFound, match=told):
            client.result(name)
        with pytest.raises(JobNotFound):
            next(client.stream(name, wait=False))

    async def talk() -> None:
        async with AsyncClient(redis_url) as other:
            with pytest.raises(JobNotFound, match="wait=True"):
                await other.result("never")

    asyncio.run(talk())


def test_a_result_of_a_job_that_is_to_come_is_waited_for_when_asked(client: Client, herd: Herd) -> None:
    results: list[str] = []
    reader = threading.Thread(target=lambda: results.append(client.result("a", wait=True).job), daemon=True)
    reader.start()
    herd.wait_for_listener("a")
    client.submit(prompt="x", job_id="a")
    client.cancel("a")
    reader.join(PATIENCE_S)
    assert results == ["a"]


def test_a_job_that_was_forgotten_while_it_was_read_is_not_waited_for(client: Client, herd: Herd) -> None:
    with pytest.raises(JobNotFound):
        list(client.stream("a", after=3))


def test_a_cancelled_job_has_its_result_at_once(client: Client, herd: Herd) -> None:
    job_id = client.submit(prompt="x")
    assert client.cancel(job_id) is Cancellation.CANCELLED
    assert client.cancel(job_id) is Cancellation.FINISHED
    assert client.result(job_id).finish_reason == "cancelled"
    assert client.cancel("zz") is Cancellation.UNKNOWN


def test_a_job_goes_to_the_queue_of_its_model(client: Client, redis: Redis) -> None:
    client.submit(prompt="x")
    client.submit(prompt="x", model="other")
    assert (redis.llen(QUEUE), redis.llen("herd.other")) == (1, 1)


def test_a_submit_may_be_repeated_under_its_id_only(client: Client, redis: Redis) -> None:
    assert client.submit(prompt="x", job_id="a") == client.submit(prompt="x", job_id="a") == "a"
    assert redis.llen(QUEUE) == 1
    with pytest.raises(JobConflict, match="job_id: another job already has it, a"):
        client.submit(prompt="y", job_id="a")
    with pytest.raises(InvalidJob, match="job_id"):
        client.submit(prompt="y", job_id="a b")
    with pytest.raises(TypeError):
        client.submit(GenerationJob(prompt="x"), prompt="y")


def test_a_full_queue_is_an_error_with_both_numbers(redis_url: str) -> None:
    with Client(redis_url, max_queue=1) as client:
        client.submit(prompt="x")
        with pytest.raises(
            QueueFull, match=r"1 jobs wait in herd.tales, and the limit is 1. Fix: .*HERD_MAX_QUEUE"
        ):
            client.submit(prompt="x")


def test_the_status_counts_jobs_and_lists_workers(client: Client, herd: Herd) -> None:
    for job_id in "abc":
        client.submit(prompt="x", job_id=job_id)
    herd.claim("a")
    status = WorkerStatus(name="w1", state="ready", model="tales", device="cpu", slots=4, kv_cache_usage=0.25)
    run_call(herd.redis, Reports().report_worker(status))
    seen = client.status()
    assert (seen.queue, seen.depth, seen.pending, seen.running) == (QUEUE, 3, 2, 1)
    assert [worker.model_copy(update={"beat_ms": 0}) for worker in seen.workers] == [status]
    assert client.workers() == seen.workers
    assert abs(seen.workers[0].beat_ms / 1000 - herd.redis.time()[0]) < 10
    assert 0 < herd.redis.ttl("herd:default:worker:w1") <= 10


def test_the_status_is_two_round_trips(redis: Redis) -> None:
    core = ClientCore(Settings(model_name="tales"))
    dialogue = read_status(core.ledger, core.queue)
    asked = dialogue.send(run_calls(redis, dialogue.send(None)))
    with pytest.raises(StopIteration) as caught:
        dialogue.send(run_calls(redis, asked))
    seen = caught.value.value
    assert seen == Status(QUEUE, 0, 0, 0, [], [], [], 0, 0, 0, 0, 0, seen.now_ms)


def test_a_worker_that_fell_silent_is_not_listed(client: Client, herd: Herd) -> None:
    status = WorkerStatus(name="w1", state="ready", model="tales", device="cpu", slots=4)
    run_call(herd.redis, Reports().report_worker(status))
    herd.redis.delete("herd:default:worker:w1")
    assert client.workers() == []
    run_call(herd.redis, Reports().report_worker(status))
    herd.redis.zadd("herd:default:workers", {"w1": 1})
    assert client.workers() == []
    assert herd.redis.zcard("herd:default:workers") == 0


@pytest.mark.parametrize("fields", [{"slots": "some"}, {"other": "1"}])
def test_a_worker_whose_words_are_not_understood_hides_no_other(
    client: Client, herd: Herd, fields: dict[str, str]
) -> None:
    """One of another version, say."""
    for name in ("odd", "here"):
        status = WorkerStatus(name=name, state="ready", model="tales", device="cpu", slots=4)
        run_call(herd.redis, Reports().report_worker(status))
    herd.redis.delete("herd:default:worker:odd")
    herd.redis.hset("herd:default:worker:odd", mapping={"name": "odd", **fields})
    assert [worker.name for worker in client.workers()] == ["here"]


def test_workers_that_are_gone_are_forgotten_though_nobody_asks_for_them(herd: Herd) -> None:
    """Names of pods are never used again."""
    for name in ("gone", "here"):
        status = WorkerStatus(name=name, state="ready", model="tales", device="cpu", slots=4)
        run_call(herd.redis, Reports().report_worker(status))
        herd.redis.zadd("herd:default:workers", {"gone": 1}, xx=True)
    assert herd.redis.zrange("herd:default:workers", 0, -1) == [b"here"]


@pytest.mark.long
def test_a_redis_that_is_not_there_is_one_line_with_the_fix_and_no_secret() -> None:
    client = Client("redis://me:hunter2@127.0.0.1:1/0")
    for use in (lambda: client.submit(prompt="x"), client.status, lambda: client.result("a")):
        with pytest.raises(RedisUnavailable) as caught:
            use()
        line = str(caught.value)
        assert "redis://me:***@127.0.0.1:1/0" in line
        assert "Fix:" in line
        assert "hunter2" not in line
        assert "\n" not in line


def test_settings_come_from_the_caller_first(redis_url: str) -> None:
    settings = Settings(redis_url="redis://127.0.0.1:1/0", tenant="other")
    with Client(redis_url, tenant="acme", model="m", settings=settings) as client:
        client.submit(prompt="x")
        assert client.status().queue == "herd.acme:m"
        assert client.status().pending == 1
    with Client(redis_url) as client:
        assert client.status().pending == 0


def test_a_setting_that_cannot_work_is_refused_by_name(redis_url: str) -> None:
    with pytest.raises(SettingsError, match="tenant"):
        Client(redis_url, tenant="a b")
    with pytest.raises(SettingsError, match="redis_url: must be the URL of a Redis"):
        Client("localhost")


def test_a_closed_client_ends_the_streams_of_other_threads(redis: Any, redis_url: str, herd: Herd) -> None:
    herd.submit("a")
    num_before = len(redis.client_list())
    client = Client(redis_url)
    with ThreadPoolExecutor() as threads:
        readings = [threads.submit(client.result, "a") for _ in range(5)]
        channel = herd.ledger.channel("a")
        wait_until(lambda: redis.pubsub_numsub(channel)[0][1] == len(readings), "all listen")
        client.close()
        for reading in readings:
            with pytest.raises(RedisUnavailable, match="closed"):
                reading.result(PATIENCE_S)
    wait_until(lambda: len(redis.client_list()) <= num_before, "no connection is left")
    assert client.count_jobs() == 1
    client.close()
