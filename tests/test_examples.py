"""The examples run as they stand, and what the README shows is in the repository."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.tasks import Client
from llama_herd.worker.local.redis_server import EmbeddedRedis
from llama_herd.worker.settings import BUNDLED_MODEL
from tests.worker.processes import WorkerProcess, wait_until

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

pytestmark = [pytest.mark.redis, pytest.mark.worker]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with EmbeddedRedis() as server, WorkerProcess(server.url, BUNDLED_MODEL, "examples", log):
        yield server.url


def start(url: str, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    env = {**os.environ, "HERD_REDIS_URL": url, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def run(url: str, name: str) -> str:
    with start(url, name) as process:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return output


def test_the_client_streams_a_job_and_reads_its_result(url: str) -> None:
    *text, last = run(url, "client.py").splitlines()
    assert len(" ".join(text).split()) > 10
    assert re.match(r"(stop|length) prompt_tokens=\d+ completion_tokens=\d+", last)


def test_a_celery_shop_enqueues_without_our_code(url: str) -> None:
    job_id, text = run(url, "send_task.py").split("\n", 1)
    assert len(job_id) == 36
    assert len(text.split()) > 10


def test_a_bare_subscriber_reads_what_is_published(url: str) -> None:
    subscriber = start(url, "subscribe.py", "watched")
    with subscriber as process, Client(url) as client, Redis.from_url(url) as redis:
        wait_until(lambda: redis.pubsub_numsub("herd:default:tokens:watched")[0][1], "subscribed")
        client.submit(prompt="Once upon a time", sampling={"max_tokens": 5}, job_id="watched")
        output, _ = process.communicate(timeout=60)
    lines = output.splitlines()
    assert lines[0] == "1 started "
    assert lines[-1].split()[1] == "end"


def test_the_readme_shows_the_example_as_it_is() -> None:
    example = (ROOT / "examples" / "client.py").read_text().split('"""\n\n', 1)[1]
    assert example.strip() in README


def test_every_file_that_the_readme_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_a_batch_runs_from_python_in_order(url: str) -> None:
    lines = run(url, "batch.py").splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(20)]
    assert "failed" not in " ".join(lines)
