"""The command around a real worker: it starves nobody, and its rows go on without it."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.tasks.client.batch.window import LOOK_AHEAD
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Started, Token
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.cli.batch.batch_command import BatchCommand
from tests.cli.batch.killing import SLOTS, deterministic_workers, size
from tests.local.processes import held
from tests.local.tended_worker import TendedWorker
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]


CHAT = "{{ bos_token }}{% for turn in messages %}{{ turn.role }}: {{ turn.content }}, {% endfor %}"


@pytest.fixture(scope="module")
def worker(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TendedWorker]:
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "tiny.gguf", eos=False, context_length=4096, chat_template=CHAT)
    with deterministic_workers(1, server, model, folder, lease_ms=60_000) as (worker,):  # it does not die
        yield worker


def ended(worker: TendedWorker) -> list[str]:
    """The jobs that have ended in it, in this order."""
    whole_lines = worker.log.split("\n")[:-1]
    return [json.loads(line)["job_id"] for line in whole_lines if '"job ended"' in line]


def test_an_interactive_job_overtakes_a_batch(
    server: EmbeddedRedis, worker: TendedWorker, tmp_path: Path
) -> None:
    command = BatchCommand(tmp_path, server.url)
    command.write({"prompt": "a tale ", "max_tokens": 50} for _ in range(200))
    with command.start() as process, Client(server.url) as client:
        wait_until(lambda: size(command.output) > 0, "first answers")
        with held(worker.log_path.parent):
            num_before = len(ended(worker))
            job_id = client.submit(prompt="quick", sampling={"max_tokens": 1})
        wait_until(lambda: job_id in ended(worker), "it is answered")
        process.kill()
        client.cancel_jobs(run_id=command.run_id)  # the next test counts what is in the cache
        wait_until(lambda: client.status().running == client.status().pending == 0, "its rows are over")
    # A row must end for its message to be taken and another for its place.
    assert ended(worker).index(job_id) - num_before <= 3 * (SLOTS + LOOK_AHEAD)


def test_chats_use_the_models_template_and_share_their_beginning(
    server: EmbeddedRedis, worker: TendedWorker, tmp_path: Path
) -> None:
    command = BatchCommand(tmp_path, server.url)
    system = {"role": "system", "content": "a llama is in the herd " * 60}
    line = {"method": "POST", "url": "/v1/chat/completions"}
    command.write(
        line | {"custom_id": f"c{n}", "body": {"messages": [system, {"role": "user", "content": f"{n}"}]}}
        for n in range(60)
    )
    with Client(server.url) as client:
        hits_before = cache_hits(client)
        done = command.run("--max-tokens", "4")
        assert done.exit_code == 0, done.output
        num_tokens = command.answers()[0]["response"]["body"]["usage"]["prompt_tokens"]
        num_shared = num_tokens // PAGE_TOKENS * PAGE_TOKENS
        assert num_shared >= 4 * PAGE_TOKENS
        wait_until(lambda: cache_hits(client) - hits_before == 59 * num_shared, "only one has computed them")
    choice = command.answers()[0]["response"]["body"]["choices"][0]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "length")
    with Redis.from_url(server.url) as redis:
        assert redis.keys("celery-task-meta-batch-*") == []


def cache_hits(client: Client) -> int:
    return sum(one.prefix_cache_hits for one in client.workers())


def test_rows_under_way_go_on_while_the_command_is_dead(
    server: EmbeddedRedis, worker: TendedWorker, tmp_path: Path
) -> None:
    command = BatchCommand(tmp_path, server.url)
    command.write({"prompt": f"tale {n} ", "max_tokens": 250} for n in range(4))
    with Client(server.url) as client:
        with held(worker.log_path.parent), command.start() as process:
            wait_until(lambda: client.status().running == 4, "rows are under way")
            process.kill()
            process.communicate()
        assert size(command.output) == 0
        events = client.stream(f"batch-{command.run_id}-1", timeout_s=PATIENCE_S)
        seen = list(islice(events, 3))
        with command.start() as again:
            seen += events
            again.communicate(timeout=PATIENCE_S)
    assert [type(event) for event in seen].count(Started) == 1
    assert command.texts()["line-1"] == "".join(event.text for event in seen if isinstance(event, Token))
    assert len(command.answers()) == 4
