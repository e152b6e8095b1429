"""The command around real workers: killed at any byte it comes to the same, and it starves nobody."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.tasks.client import Client
from llama_herd.tasks.events import Started
from llama_herd.worker.chaos.patience import PATIENCE_S, wait_until
from llama_herd.worker.chaos.worker_process import WorkerProcess
from llama_herd.worker.embedded_redis import EmbeddedRedis
from tests.tiny import write_tiny_gguf
from tests.worker.batch.batch_command import BatchCommand
from tests.worker.batch.killing import OPTIONS, long_rows, random_offsets, run_with_kills, size, two_workers

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]


CHAT = "{{ bos_token }}{% for turn in messages %}{{ turn.role }}: {{ turn.content }}, {% endfor %}"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="module")
def workers(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerProcess]]:
    folder = tmp_path_factory.mktemp("workers")
    model = write_tiny_gguf(folder / "tiny.gguf", eos=False, context_length=4096, chat_template=CHAT)
    with two_workers(server, model, folder) as workers:
        yield workers


def test_an_interactive_job_overtakes_a_batch(
    server: EmbeddedRedis, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    command = BatchCommand(tmp_path, server.url)
    command.write({"prompt": "a tale ", "max_tokens": 150} for _ in range(300))
    with command.start() as process, Client(server.url) as client:
        wait_until(lambda: size(command.output) > 0, "first answers")
        num_before = len(command.answers())
        job_id = client.submit(prompt="quick", sampling={"max_tokens": 1})
        first = next(client.stream(job_id, timeout_s=PATIENCE_S))
        num_after = len(command.answers())
        process.kill()
    assert isinstance(first, Started)
    # A row must end for its message to be taken and another for its place; there are 16 places.
    assert num_after - num_before <= 3 * 16


def test_chats_use_the_models_template_and_share_their_beginning(
    server: EmbeddedRedis, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    command = BatchCommand(tmp_path, server.url)
    system = {"role": "system", "content": "a llama is in the herd " * 20}
    line = {"method": "POST", "url": "/v1/chat/completions"}
    command.write(
        line | {"custom_id": f"c{n}", "body": {"messages": [system, {"role": "user", "content": f"{n}"}]}}
        for n in range(60)
    )
    done = command.run("--max-tokens", "4")
    assert done.exit_code == 0, done.output
    choice = command.answers()[0]["response"]["body"]["choices"][0]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "length")
    with Redis.from_url(server.url) as redis:
        assert redis.keys("celery-task-meta-batch-*") == []
    with Client(server.url) as client:
        wait_until(lambda: all(one.prefix_hit_rate > 0.3 for one in client.workers()), "pages are shared")


def test_killed_at_two_bytes_with_a_worker_each_it_comes_to_the_same(
    server: EmbeddedRedis, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    whole, torn = (BatchCommand(tmp_path / name, server.url) for name in ("whole", "torn"))
    for command in (whole, torn):
        command.folder.mkdir()
        command.write(long_rows(60))
    assert whole.run(*OPTIONS).exit_code == 1
    run_with_kills(torn, workers, random_offsets(size(whole.output), 2, seed=1))
    assert torn.texts() == whole.texts()
    assert len(torn.answers()) == len(whole.answers()) == 48
    assert sorted(one["line"] for one in torn.failures()) == list(range(5, 61, 5))
