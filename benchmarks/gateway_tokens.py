"""Tokens a second that readers get from one worker: by the Python client, and through the gateway.

    python -m benchmarks.gateway_tokens [--write]

All ways take turns at the same warm worker, and each round begins with another of them. Every job is
streamed to a reader of its own. Worker, Redis, gateway and readers share the cores.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

from benchmarks.conditions import conditions
from benchmarks.gateway import gateway_process
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import PROMPTS
from benchmarks.warm_worker import warm_worker
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.events import End
from llama_herd.tasks.sampling import SamplingParams

#: Reads one job to its end, and returns how many tokens it had.
Reader = Callable[[str], Awaitable[int]]


@dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (8, 32)
    jobs_a_row: int = 2
    max_tokens: int = 96
    rounds: int = 15


async def _by_client(client: AsyncClient, plan: Plan, prompt: str) -> int:
    job_id = await client.submit(prompt=prompt, sampling=_sampling(plan))
    async for event in client.stream(job_id):
        if isinstance(event, End) and event.usage is not None:
            return event.usage.completion_tokens
    raise RuntimeError("a job has failed")


async def _by_http(url: str, plan: Plan, prompt: str) -> int:
    """OpenAI's endpoint over a connection of its own; the last chunk counts the tokens."""
    place = urlsplit(url)
    body = json.dumps(
        {
            "model": "tales",
            "prompt": prompt,
            **{name: getattr(_sampling(plan), name) for name in ("max_tokens", "temperature", "ignore_eos")},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(f"{head}{body}".encode())
    last = b""
    while (line := await reader.readline()) and line != b"data: [DONE]\n":
        last = line if line.startswith(b"data: ") else last
    writer.close()
    return int(json.loads(last[6:])["usage"]["completion_tokens"])


def _sampling(plan: Plan) -> SamplingParams:
    return SamplingParams(max_tokens=plan.max_tokens, temperature=0, ignore_eos=True)


async def _tokens_per_s(read: Reader, num_jobs: int) -> float:
    started_s = perf_counter()
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(num_jobs)]
    return sum(await asyncio.gather(*map(read, prompts))) / (perf_counter() - started_s)


async def _rounds(plan: Plan, num_rows: int, redis_url: str, url: str) -> dict[str, list[float]]:
    """Tokens a second of each way in each round."""
    async with AsyncClient(redis_url) as client:
        ways: dict[str, Reader] = {
            "client": lambda prompt: _by_client(client, plan, prompt),
            "gateway": lambda prompt: _by_http(url, plan, prompt),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-1, plan.rounds):  # the first is to get warm
            for name in sorted(ways, reverse=number % 2 == 1):
                speed = await _tokens_per_s(ways[name], plan.jobs_a_row * num_rows)
                if number >= 0:
                    found[name].append(speed)
        return found


def measure(plan: Plan) -> Report:
    runs = []
    for num_rows in plan.rows:
        with warm_worker(num_rows, _sampling(plan)) as queue, gateway_process(queue.url) as gateway:
            before_s = gateway.cpu_s
            found = asyncio.run(_rounds(plan, num_rows, queue.url, gateway.url))
            cpu_s = gateway.cpu_s - before_s
        num_tokens = (plan.rounds + 1) * plan.jobs_a_row * num_rows * plan.max_tokens
        shares = [by / of for by, of in zip(found["gateway"], found["client"], strict=True)]
        runs.append(
            {
                "rows": num_rows,
                "streams": plan.jobs_a_row * num_rows,
                "client, tokens/s": round(median(found["client"])),
                "gateway, tokens/s": round(median(found["gateway"])),
                "share": round(median(shares), 3),
                "smallest share": round(min(shares), 3),
                "largest share": round(max(shares), 3),
                "gateway CPU us a token": round(1e6 * cpu_s / num_tokens),
            }
        )
    return {"benchmark": "gateway_tokens", "plan": asdict(plan), "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    runs = report["runs"]
    yield Table(list(runs[0]), [list(run.values()) for run in runs])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
