"""More vectors than Redis has memory for pass through it: of the command, and of a gateway."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis import Redis

from benchmarks.batch import Memory
from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis, free_port
from tests.batch_api import BatchApi
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.test_memory import answers
from tests.cli.herd_command import start_herd

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(600)]

#: 22 KB each in Redis, and all of them twice its memory.
WIDTH, NUM = 4096, 12_000
REDIS_BYTES = 128 << 20
#: Of the command, or gateway: what is under way, as it comes and as it is written.
MAX_BYTES = 350e6


@pytest.fixture
def url() -> Iterator[str]:
    """A small Redis that throws nothing away, and a stand-in for workers."""
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        redis.config_set("maxmemory", REDIS_BYTES)
        with StandIn(server.url, width=WIDTH, slots=8):
            yield server.url


def memory_figure(memory: Memory) -> str:
    own, redis = memory.most.command_bytes / 1e6, memory.most.redis_bytes / 1e6
    return f"{NUM:,} vectors of {WIDTH:,} numbers: {own:.0f} MB here, {redis:.0f} MB in Redis at most"


def test_the_command_takes_more_vectors_than_redis_holds(
    url: str, tmp_path: Path, figures: list[str]
) -> None:
    lines = (json.dumps({"text": f"text {number}"}) for number in range(NUM))
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    memory = Memory()
    command = ("batch", "in.jsonl", "-o", "out.npy", "--embed")
    with (
        start_herd(tmp_path, *command, HERD_REDIS_URL=url) as process,
        memory.watching(process.pid, url),
    ):
        output, _ = process.communicate()
    assert process.returncode == 0, output
    found = np.load(tmp_path / "out.npy", mmap_mode="r")
    assert found.shape == (NUM, WIDTH)
    assert found.any(axis=1).all()
    figures.append(memory_figure(memory))
    assert 0 < memory.most.redis_bytes < REDIS_BYTES
    assert 0 < memory.most.command_bytes < MAX_BYTES


def test_a_gateway_does_too(url: str, tmp_path: Path, figures: list[str]) -> None:
    row = {"method": "POST", "url": "/v1/embeddings"}
    bodies = ({"model": "tales", "input": [f"{at} {n}" for n in range(64)]} for at in range(NUM // 64))
    lines = [json.dumps({**row, "custom_id": f"c{at}", "body": body}) for at, body in enumerate(bodies)]
    port, memory = free_port(), Memory()
    api = BatchApi(lambda: f"http://127.0.0.1:{port}")
    own = {"PORT": str(port), "OPEN": "true", "REQUEST_LOG": "off", "FILES": str(tmp_path / "files")}
    settings = {f"HERD_GATEWAY_{name}": value for name, value in {**own, "FILE_BYTES": str(1 << 34)}.items()}
    gateway = start_herd(tmp_path, "gateway", HERD_REDIS_URL=url, **settings)
    try:
        wait_until(lambda: answers(api), "the gateway is up")
        with memory.watching(gateway.pid, url):
            uploaded = api.upload("\n".join(lines).encode())
            created = api.create(uploaded.json["id"], endpoint="/v1/embeddings")
            found = api.end_of(created.json["id"], 500.0)
    finally:
        gateway.kill()
        gateway.communicate()
    assert found["request_counts"]["completed"] == len(lines), found
    assert found["usage"]["input_tokens"] == NUM // 64 * 64
    figures.append(memory_figure(memory))
    assert 0 < memory.most.redis_bytes < REDIS_BYTES
    assert 0 < memory.most.command_bytes < MAX_BYTES
