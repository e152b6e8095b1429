"""The examples in JavaScript run as they stand against a real worker."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.local.processes import ForkedWorker
from tests.node import FOLDER, bring_packages, needs_node

pytestmark = [pytest.mark.redis, pytest.mark.program, needs_node]


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    bring_packages()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with EmbeddedRedis() as server:
        settings = WorkerSettings.read(redis_url=server.url, threads=1)
        with ForkedWorker(settings, "node@test", log):
            yield server.url


def start(url: str, name: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "HERD_REDIS_URL": url, **environment}
    return subprocess.Popen(
        ["node", str(FOLDER / name), *arguments], env=env, stdout=subprocess.PIPE, text=True
    )


def numbers(process: subprocess.Popen[str]) -> list[int]:
    """The `seq` of each line of a subscriber, which ends by itself."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.splitlines()[-1].split()[1] == "end"
    return [int(line.split()[0]) for line in output.splitlines()]


def test_subscribers_from_node_read_the_same_before_and_after(url: str) -> None:
    with Client(url) as client, Redis.from_url(url) as redis, start(url, "subscribe.mjs", "watched") as early:
        wait_until(lambda: redis.pubsub_numsub("herd:default:tokens:watched")[0][1], "subscribed")
        client.submit(prompt="Once upon a time", sampling={"max_tokens": 40}, job_id="watched")
        everything = [event.seq for event in client.stream("watched", timeout_s=60)]
        assert numbers(early) == everything
    with start(url, "subscribe.mjs", "watched") as late:
        assert numbers(late) == everything
    with start(url, "subscribe.mjs", "watched", "1") as again:
        assert numbers(again) == everything[1:]


def output_of(url: str, name: str, *arguments: str, **environment: str) -> str:
    with start(url, name, *arguments, **environment) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output


def test_node_submits_by_the_script_and_is_told_of_conflicts_and_full_queues(url: str) -> None:
    assert output_of(url, "submit.mjs", "by-script", "Long ago").startswith("submitted ")
    assert output_of(url, "submit.mjs", "by-script", "Long ago").startswith("exists ")
    assert output_of(url, "submit.mjs", "by-script", "Just now").startswith("conflict ")
    with Client(url) as client:
        assert client.result("by-script", timeout_s=60).finish_reason in ("stop", "length")
        client.submit(prompt="waits", not_before=int(1e13), job_id="waits")
        assert output_of(url, "submit.mjs", "one-more", HERD_MAX_QUEUE="1").startswith("queue_full 1 ")
        client.cancel("waits")


def test_celery_node_submits_a_job_and_gets_its_result(url: str) -> None:
    job_id, text = output_of(url, "submit_celery_node.mjs").split("\n", 1)
    with Client(url) as client:
        assert client.result(job_id).text == text.removesuffix("\n")
