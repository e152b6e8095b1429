"""OpenAI's own clients through the silence after a worker's death."""

from pathlib import Path
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from tests.chaos.harness.patience import wait_until
from tests.clients.client_process import CLIENTS, ClientProcess, new_key
from tests.local.processes import WorkerProcess
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.fault, pytest.mark.timeout(180)]

#: Some seconds of a tiny model that never stops by itself; only as a stream.
LONG: dict[str, Any] = {
    "chat": False,
    "body": {"model": "tales", "prompt": "the queue", "max_tokens": 600, "seed": 5, "logprobs": 1},
    "extra": {},
    "only_stream": True,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stream_outlives_its_worker(client: str, tmp_path: Path) -> None:
    """And the silence until another has it, in which the gateway sends comments."""
    path = write_tiny_gguf(tmp_path / "endless.gguf", eos=False, context_length=2048)
    options: dict[str, Any] = {"model_name": "tales", "lease_ms": 1500, "deterministic": True}
    slow: dict[str, Any] = {"held_by": tmp_path, "step_s": 0.01}
    with (
        EmbeddedRedis() as server,
        GatewayThread(server.url, heartbeat_s=0.2) as gateway,
        Client(server.url) as observer,
    ):
        first = WorkerProcess(server.url, path, "first", tmp_path / "first.log", **options, **slow)
        with first:
            reader = ClientProcess(client, gateway.url, new_key(server.url), [LONG])
            wait_until(lambda: any(job.tokens > 20 for job in observer.jobs()), "it has begun")
            first.kill()
        with WorkerProcess(server.url, path, "second", tmp_path / "second.log", **options):
            found = reader.read()
    streams = [found["streams"][0], found["answers"][0]["chunks"]]
    texts = ["".join(chunk["choices"][0]["text"] for chunk in stream[:-1]) for stream in streams]
    assert texts[0] == texts[1]
    assert [stream[-1]["usage"]["completion_tokens"] for stream in streams] == [600, 600]
