"""What a request costs a gateway's processor, beside a server that does nothing but send the same answer.

    python -m benchmarks.gateway_cost [--write]

A worker without a model answers, each job so many tokens a second. Each client keeps its connection. The
floor is `benchmarks.bare_server`: the same HTTP server, and what the gateway sent, with the same pauses.
"""

import asyncio
import json
from asyncio import StreamReader
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import Benchmark, in_turns, main
from benchmarks.process_figures import cpu_s
from benchmarks.processes import Server, fake_worker, http_server
from benchmarks.report import Row, Table
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from tests.cli.gateway_process import GatewayProcess

MODEL, PROMPT = "tales", "Once upon a time"
CHATS, CHAT = "/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}
RESPONSES, RESPONSE = "/v1/responses", {"input": PROMPT}
VECTORS = "/v1/embeddings"


@dataclass(frozen=True)
class Case:
    """What is asked."""

    name: str
    path: str
    body: Mapping[str, Any]

    @property
    def request(self) -> bytes:
        body = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


CASES = (
    Case("chat, 1 token", CHATS, {**CHAT, "max_tokens": 1}),
    Case("chat, 64 tokens", CHATS, {**CHAT, "max_tokens": 64}),
    Case("chat, 64 as they come", CHATS, {**CHAT, "max_tokens": 64, "stream": True}),
    Case("response, 64 tokens", RESPONSES, {**RESPONSE, "max_output_tokens": 64}),
    Case("response, 64 as they come", RESPONSES, {**RESPONSE, "max_output_tokens": 64, "stream": True}),
    Case("vector of a text", VECTORS, {"input": PROMPT}),
)


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...] = CASES
    clients: int = 64
    requests: int = 256  # of each case and round
    tokens_per_s: int = 20  # of a job; 0: all at once
    rounds: int = 3


def measure(plan: Plan) -> Iterator[Table]:
    with TemporaryDirectory() as name, gateway(plan, Path(name)) as asked:
        rows = [of_case(case, plan, asked, Path(name) / "parts") for case in plan.cases]
    yield Table(rows, f"{plan.clients} clients, {plan.tokens_per_s} tokens a second each")


def of_case(case: Case, plan: Plan, asked: Server, path: Path) -> Row:
    parts = asyncio.run(ask(asked.url, case.request, plan.clients, plan.clients))
    path.write_text(json.dumps([parts, 1 / plan.tokens_per_s if plan.tokens_per_s else 0]))
    with http_server("-m", "benchmarks.bare_server", str(path)) as floor:
        servers = {"gateway": asked, "floor": floor}
        ways = {of: partial(spent_us, at, case, plan) for of, at in servers.items()}
        found = in_turns(ways, plan.rounds)
    answer = "".join(parts)
    num_events, used_us = answer.count("data: "), found["gateway"]
    return {
        "asked": case.name,
        "bytes": len(answer),
        "events": num_events or "-",
        "us a request": used_us,
        "us an event": [one / num_events for one in used_us] if num_events else "-",
        "floor, us a request": found["floor"],
    }


def spent_us(server: Server, case: Case, plan: Plan) -> float:
    """Microseconds of the server's processor for each request."""
    before_s = cpu_s(server.pid)
    asyncio.run(ask(server.url, case.request, plan.clients, plan.requests))
    return 1e6 * (cpu_s(server.pid) - before_s) / plan.requests


async def ask(url: str, request: bytes, num_clients: int, num_requests: int) -> list[str]:
    """Send a request so often by all clients together; the parts of the last answer."""
    place = urlsplit(url)

    async def client() -> list[str]:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        parts: list[str] = []
        for _ in range(num_requests // num_clients):
            writer.write(request)
            parts = await answer_parts(reader)
        writer.close()
        return parts

    return (await asyncio.gather(*(client() for _ in range(num_clients))))[-1]


async def answer_parts(reader: StreamReader) -> list[str]:
    """An answer as it was sent: by its chunks, or whole."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if not head.startswith("http/1.1 200 "):
        raise RuntimeError(head)
    if "transfer-encoding: chunked" not in head:
        length = head.partition("content-length: ")[2].partition("\r")[0]
        return [(await reader.readexactly(int(length))).decode()]
    parts: list[str] = []
    while num_bytes := int(await reader.readline(), 16):
        parts.append((await reader.readexactly(num_bytes + 2)).decode()[:-2])
    await reader.readexactly(2)
    return parts


@contextmanager
def gateway(plan: Plan, folder: Path) -> Iterator[Server]:
    """A gateway whose jobs are answered."""
    answer = ("--answer", "one two three four " * 16, "--tokens-per-s", str(plan.tokens_per_s))
    with (
        EmbeddedRedis() as redis,
        fake_worker(redis.url, MODEL, plan.clients, *answer),
        Client(redis.url, model=MODEL) as client,
        GatewayProcess(redis.url, folder / "log", HERD_MODEL_NAME=MODEL) as found,
    ):
        client.result(client.submit(prompt=PROMPT, sampling={"max_tokens": 1}), timeout_s=60)
        yield Server(found.url, found.process.pid)


BENCHMARK = Benchmark("gateway_cost", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
