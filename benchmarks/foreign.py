"""What the queue costs a server: tokens a second of vLLM and llama-server, straight and through a worker.

    python -m benchmarks.foreign [--engines llama-server] [--models tales] [--write]

Both ways ask the same running server for the same greedy tokens, all jobs at once, and take turns. Asked
straight, a client streams text by /v1/completions, as a service would. The worker has as many slots as the
server has rows, and a quarter more. `make test-engines` installs the servers before.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from gguf import GGMLQuantizationType as GGMLType
from rich.console import Console

from benchmarks.gpu.random_model import write_random_model
from benchmarks.harness import Benchmark, in_turns, main
from benchmarks.jobs import greedy, prompts
from benchmarks.process_figures import cpu_s
from benchmarks.report import Row, Table
from benchmarks.shapes import random_config
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.worker.foreign.http import HttpServer
from tests.engines.servers import PROGRAMS, EngineServer, llama_server, vllm, write_folder

#: SmolLM2-135M's shape, with the vocabulary of the bundled model.
MIDDLE = random_config(
    hidden_size=576, num_layers=30, num_heads=9, num_kv_heads=3, ffn_size=1_536, vocab_size=2_048
)


@dataclass(frozen=True)
class Plan:
    engines: tuple[str, ...] = ("vllm",)
    models: tuple[str, ...] = ("135M", "tales")
    rows: int = 32
    slots: tuple[int, ...] = (32, 40)
    jobs_per_row: int = 4
    max_tokens: int = 64
    rounds: int = 3


def measure(plan: Plan) -> Iterator[Table]:
    console, rows = Console(stderr=True, log_path=False), list[Row]()
    there = [engine for engine in plan.engines if (PROGRAMS / engine).exists()]
    for engine, model in product(there, plan.models):
        for row in of_server(engine, model, plan):
            console.log(row)
            rows.append(row)
    num_jobs = plan.rows * plan.jobs_per_row
    yield Table(
        rows, f"Tokens a second of {num_jobs} jobs on {plan.rows} rows, {plan.max_tokens} tokens each"
    )


def of_server(engine: str, model: str, plan: Plan) -> Iterator[Row]:
    """A row for each number of slots."""
    with TemporaryDirectory() as folder, new_server(engine, model, Path(folder), plan.rows) as server:
        for slots in plan.slots:
            asked = {"engine": engine, "engine_url": server.url, "model": server.model}
            with warm_worker(slots, greedy(plan.max_tokens), **asked) as queue:
                yield {"server": engine, "model": model, "slots": slots, **compared(server, queue, plan)}


def compared(server: EngineServer, queue: Queue, plan: Plan) -> Row:
    """Both ways in turns, and how much of a core the worker takes meanwhile."""
    cores = list[float]()
    ways: dict[str, Callable[[], float]] = {
        "straight": lambda: asyncio.run(straight(server.url, server.model.stem, plan)),
        "through the queue": lambda: by_queue(queue, plan, cores),
    }
    found = in_turns(ways, plan.rounds, warm=1)
    pairs = zip(found["through the queue"], found["straight"], strict=True)
    return {
        **found,
        "share": median(queued / alone for queued, alone in pairs),
        "worker, cores": median(cores),
    }


def new_server(engine: str, model: str, folder: Path, rows: int) -> EngineServer:
    log, weights = folder / "server.log", BUNDLED_MODEL
    if model != "tales":
        weights = write_random_model(folder / f"{model}.gguf", MIDDLE, GGMLType.F16, torch.device("cpu"))
    if engine == "vllm":
        return vllm(log, rows, "--max-model-len", "512", model=write_folder(folder / model, weights))
    return llama_server(log, rows, model=weights)


async def straight(url: str, model: str, plan: Plan) -> float:
    """Tokens a second of a client that streams all jobs at once."""
    server = HttpServer.at(url)
    body = {"model": model, "max_tokens": plan.max_tokens, "temperature": 0, "ignore_eos": True}

    async def ask(prompt: str) -> None:
        answer = await server.post("/v1/completions", {**body, "prompt": prompt, "stream": True})
        if answer.status != 200:
            raise RuntimeError(f"the server answers {answer.status}: {answer.content!r}")

    asked, started_s = prompts(plan.rows * plan.jobs_per_row), perf_counter()
    await asyncio.gather(*map(ask, asked))
    return len(asked) * plan.max_tokens / (perf_counter() - started_s)


def by_queue(queue: Queue, plan: Plan, cores: list[float]) -> float:
    """Tokens a second from the submission to the last result."""
    sampling, client = greedy(plan.max_tokens), queue.client
    jobs = [{"prompt": prompt, "sampling": sampling} for prompt in prompts(plan.rows * plan.jobs_per_row)]
    before_s, started_s = cpu_s(queue.pid), perf_counter()
    accepted = client.submit_many(jobs)
    num_tokens = sum(len(client.result(one.job_id).ids) for one in accepted)
    took_s = perf_counter() - started_s
    cores.append((cpu_s(queue.pid) - before_s) / took_s)
    return num_tokens / took_s


BENCHMARK = Benchmark("foreign", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
