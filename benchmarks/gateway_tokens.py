"""Tokens a second that readers get from one worker: by the Python client, and through the gateway.

    python -m benchmarks.gateway_tokens [--write]

All ways take turns at the same warm worker, and each round begins with another of them. Every job is
streamed to a reader of its own. Worker, Redis, gateway and readers share the cores.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from urllib.parse import urlsplit

from benchmarks.harness import Benchmark, in_turns, main
from benchmarks.jobs import greedy, prompts
from benchmarks.processes import gateway_process
from benchmarks.report import Row, Table
from benchmarks.warm_worker import warm_worker
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.events import End

#: Reads one job to its end, and returns how many tokens it had.
Reader = Callable[[str], Awaitable[int]]


@dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (8, 32)
    jobs_a_row: int = 2
    max_tokens: int = 96
    rounds: int = 15


async def by_client(url: str, num_jobs: int, max_tokens: int) -> float:
    async with AsyncClient(url) as client:

        async def read(prompt: str) -> int:
            job_id = await client.submit(prompt=prompt, sampling=greedy(max_tokens))
            async for event in client.stream(job_id):
                if isinstance(event, End) and event.usage is not None:
                    return event.usage.completion_tokens
            raise RuntimeError("a job has failed")

        return await tokens_per_s(read, num_jobs)


async def by_http(url: str, num_jobs: int, max_tokens: int) -> float:
    """OpenAI's endpoint over a connection for each job; the last chunk counts the tokens."""
    place = urlsplit(url)
    asked = {"model": "tales", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}

    async def read(prompt: str) -> int:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        body = json.dumps(asked | {"prompt": prompt})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        last = b""
        while (line := await reader.readline()) and line != b"data: [DONE]\n":
            last = line if line.startswith(b"data: ") else last
        writer.close()
        return int(json.loads(last[6:])["usage"]["completion_tokens"])

    return await tokens_per_s(read, num_jobs)


async def tokens_per_s(read: Reader, num_jobs: int) -> float:
    started_s = perf_counter()
    return sum(await asyncio.gather(*map(read, prompts(num_jobs)))) / (perf_counter() - started_s)


def run(num_rows: int, plan: Plan) -> Row:
    num_jobs = plan.jobs_a_row * num_rows
    with warm_worker(num_rows, greedy(plan.max_tokens)) as queue, gateway_process(queue.url) as gateway:
        before_s = gateway.cpu_s

        def turn(way: Callable[[str, int, int], Awaitable[float]], url: str) -> float:
            return asyncio.run(way(url, num_jobs, plan.max_tokens))  # type: ignore[arg-type]

        ways = {"client": partial(turn, by_client, queue.url), "gateway": partial(turn, by_http, gateway.url)}
        found = in_turns(ways, plan.rounds, warm=1)
        cpu_s = gateway.cpu_s - before_s
    shares = [by / of for by, of in zip(found["gateway"], found["client"], strict=True)]
    return {
        "rows": num_rows,
        "streams": num_jobs,
        "client, tokens/s": found["client"],
        "gateway, tokens/s": found["gateway"],
        "share": shares,
        "smallest share": min(shares),
        "largest share": max(shares),
        "gateway CPU us a token": 1e6 * cpu_s / ((plan.rounds + 1) * num_jobs * plan.max_tokens),
    }


def measure(plan: Plan) -> Iterator[Table]:
    yield Table([run(num_rows, plan) for num_rows in plan.rows])


BENCHMARK = Benchmark("gateway_tokens", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
