"""The commands around a real `herd worker`: generate, watch, cancel, health, and how it ends."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llama_herd.tasks.client import Client
from llama_herd.worker.embedded_redis import EmbeddedRedis
from tests.tiny import write_tiny_gguf
from tests.worker.herd_command import invoke, start_herd
from tests.worker.processes import PATIENCE_S, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

PROMPT = "the llama is in the herd"

#: As long as the model's context allows, so that there is time to interrupt it.
LONG = ("--max-tokens", "4096")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: EmbeddedRedis) -> Iterator[Client]:
    with Client(server.url, model="endless") as client:
        yield client


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never draws EOS, so that a job runs as long as it asks for."""
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "endless.gguf", eos=False, context_length=8192)


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis, client: Client, endless: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("worker")
    with start_herd(folder, "worker", "--model", str(endless), HERD_REDIS_URL=server.url) as process:
        wait_until(lambda: client.workers() or process.poll() is not None, "worker ready")
        yield
        process.kill()


def generate(*arguments: str, **variables: str) -> str:
    done = invoke("generate", "--seed", "7", "--max-tokens", "60", *arguments, PROMPT, **variables)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_a_local_job_with_a_seed_is_the_same_each_time(endless: Path) -> None:
    one, two = (json.loads(generate("--local", "--json", "--model", str(endless))) for _ in range(2))
    for result in (one, two):
        del result["job"], result["timings"]
    assert one == two
    assert (len(one["ids"]), one["finish_reason"], one["attempts"]) == (60, "length", 1)


def test_a_prompt_may_come_by_standard_input(endless: Path) -> None:
    options = ("generate", "--local", "--model", str(endless), "--seed", "7")
    assert invoke(*options, "-", stdin=f"{PROMPT}\n").stdout == invoke(*options, PROMPT).stdout


@pytest.mark.usefixtures("worker")
def test_a_job_gives_the_same_through_the_queue_and_without_it(server: EmbeddedRedis, endless: Path) -> None:
    variables = {"HERD_REDIS_URL": server.url}
    queued = json.loads(generate("--json", "--model", "endless", **variables))
    local = json.loads(generate("--local", "--json", "--model", str(endless)))
    same = ("ids", "text", "finish_reason", "usage", "seed", "attempts", "error")
    assert [queued[name] for name in same] == [local[name] for name in same]
    assert set(queued) == set(local)
    assert generate("--model", "endless", **variables) == queued["text"] + "\n"
    assert generate("--local", "--model", str(endless)) == local["text"] + "\n"


@pytest.mark.usefixtures("worker")
def test_a_watcher_reads_the_same_events_from_any_point(server: EmbeddedRedis, client: Client) -> None:
    job_id = client.submit(prompt=PROMPT, sampling={"max_tokens": 20})
    result = client.result(job_id, timeout_s=PATIENCE_S)
    text = invoke("watch", job_id, HERD_REDIS_URL=server.url)
    assert (text.exit_code, text.stdout) == (0, result.text + "\n")
    lines = invoke("watch", job_id, "--json", HERD_REDIS_URL=server.url).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert json.loads(lines[-1])["type"] == "end"
    later = invoke("watch", job_id, "--json", "--after", "3", HERD_REDIS_URL=server.url)
    assert later.stdout.splitlines() == lines[3:]


@pytest.mark.usefixtures("worker")
def test_ctrl_c_cancels_the_job_and_keeps_its_text(
    server: EmbeddedRedis, client: Client, tmp_path: Path
) -> None:
    arguments = ("generate", *LONG, "--model", "endless", PROMPT)
    with start_herd(tmp_path, *arguments, HERD_REDIS_URL=server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, complaint = process.stdout.read(), process.stderr.read()
    assert process.returncode == 1
    _, _, job_id, *end = complaint.split()
    assert end == ["ended:", "cancelled"]
    result = client.result(job_id, timeout_s=PATIENCE_S)
    assert 0 < len(result.ids) < 500
    assert first + rest == result.text + "\n"


@pytest.mark.usefixtures("worker")
def test_a_running_job_is_ended_by_its_worker(server: EmbeddedRedis, client: Client) -> None:
    job_id = client.submit(prompt=PROMPT, sampling={"max_tokens": 500})
    next(client.stream(job_id, timeout_s=PATIENCE_S))
    assert invoke("cancel", job_id, HERD_REDIS_URL=server.url).stdout == "its worker ends it within a step\n"
    assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "cancelled"


@pytest.mark.usefixtures("worker")
def test_a_worker_that_is_up_is_healthy(server: EmbeddedRedis) -> None:
    assert invoke("health", HERD_REDIS_URL=server.url).exit_code == 0


def test_a_worker_refuses_a_cut_model_file_in_one_line(
    server: EmbeddedRedis, endless: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(endless.read_bytes()[:50_000])
    with start_herd(tmp_path, "worker", "--model", "cut.gguf", HERD_REDIS_URL=server.url) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("herd worker: cut.gguf: ")


def test_a_worker_with_its_own_redis_ends_cleanly_and_takes_it_along(endless: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{probe.getsockname()[1]}/0"
    arguments = ("worker", "--with-redis", "--model", str(endless), "--name", "own")
    with start_herd(tmp_path, *arguments, HERD_REDIS_URL=url) as process, Client(url) as client:
        wait_until(lambda: invoke("health", "--name", "own", HERD_REDIS_URL=url).exit_code == 0, "worker")
        (worker,) = client.workers()
        (redis,) = psutil.Process(process.pid).children()
        refused = invoke("worker", "--with-redis", HERD_REDIS_URL=url)
        next(client.stream(client.submit(prompt=PROMPT, model="endless", sampling={"max_tokens": 400})))
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C in a terminal does
        _, log = process.communicate(timeout=PATIENCE_S)
    assert not redis.is_running()
    assert refused.exit_code == 2
    assert "is in use" in refused.stderr
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    (ready,) = (line for line in lines if line["event"] == "worker ready")
    assert (ready["name"], ready["model"], ready["queue"]) == (worker.name, "endless", "herd.endless")
    assert all(line["level"] == "info" for line in lines)
    assert "superuser" not in log
