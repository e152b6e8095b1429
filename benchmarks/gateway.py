"""What the gateway costs: time to the first token, streams beside each other, deaths, and submissions.

    python -m benchmarks.gateway [--write]

Events come from a worker's calls without a model, and are read by another process. The gateway's speed is
told by its own CPU time, since all of them share the cores. All streams get an event at once, as in a step.
After the death of its gateway a reader goes on at the next one, from its last event.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from time import perf_counter, sleep, time

from benchmarks.harness import Benchmark, in_turns, main, percentiles_ms, timed_s
from benchmarks.process_figures import TICK_S
from benchmarks.processes import Gateway, gateway_process
from benchmarks.report import Row, Table
from benchmarks.stand_in import StandIn
from benchmarks.streams import Herd, gateway_readers
from benchmarks.warm_worker import warm_worker
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.events import Token
from llama_herd.tasks.sampling import SamplingParams

PROMPT = "Once upon a time"


@dataclass(frozen=True)
class Plan:
    #: Numbers of streams, and of gateways that share them.
    streams: tuple[tuple[int, int], ...] = ((200, 1), (1000, 1), (1000, 2), (1000, 4))
    orphans: int = 200
    orphan_rounds: int = 5
    orphan_round_s: float = 0.1
    paced_rounds: int = 20
    round_s: float = 0.5
    fast_events: int = 40_000
    first_tokens: int = 300
    submissions: int = 3000


@contextmanager
def gateway_processes(redis_url: str, num: int) -> Iterator[list[Gateway]]:
    with ExitStack() as stack:
        yield [stack.enter_context(gateway_process(redis_url)) for _ in range(num)]


def first_tokens(num: int) -> Iterator[Row]:
    """Times from a request to its first text, in turns by the Python client and through the gateway."""
    sampling = SamplingParams(max_tokens=1, temperature=0)
    with warm_worker(1, sampling) as queue, gateway_process(queue.url) as gateway:
        ways = {
            "client": partial(_by_client, queue.client, sampling),
            "gateway": partial(_by_http, gateway.connect()),
        }
        found = in_turns(ways, num)
    for name, times_s in found.items():
        yield {"first token, ms": name, **percentiles_ms(times_s)}


def _by_client(client: Client, sampling: SamplingParams) -> float:
    started_s, took_s = perf_counter(), 0.0
    for event in client.stream(client.submit(prompt=PROMPT, sampling=sampling)):
        if isinstance(event, Token):
            took_s = perf_counter() - started_s
    return took_s


def _by_http(connection: HTTPConnection) -> float:
    body = {"model": "tales", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "stream": True}
    started_s = perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    while not answer.readline().startswith(b"data: "):
        pass
    took_s = perf_counter() - started_s
    answer.read()
    return took_s


def streams(plan: Plan, num: int, num_gateways: int) -> Row:
    """`num` readers of one job each: at a steady pace, then as fast as events can be written."""
    with EmbeddedRedis() as server, gateway_processes(server.url, num_gateways) as gateways:

        def cpu_s() -> float:
            return sum(gateway.cpu_s for gateway in gateways)

        def rss_bytes() -> int:
            return sum(gateway.rss_bytes for gateway in gateways)

        herd = Herd(server.url, num).begin()
        before_bytes = rss_bytes()
        with gateway_readers(gateways, herd.job_ids) as readers:
            readers.wait_until_open()
            memory, began_s = rss_bytes() - before_bytes, cpu_s()
            for _ in range(plan.paced_rounds):
                sleep(max(0.0, plan.round_s - timed_s(herd.say)))
            paced_s, began_s = cpu_s() - began_s, cpu_s()
            fast_rounds = max(1, plan.fast_events // num)
            for _ in range(fast_rounds):
                herd.say()
            herd.end()
            found = readers.finish()
            fast_s = cpu_s() - began_s
    lags = percentiles_ms(found["lags"][: num * plan.paced_rounds])
    cores = paced_s / (plan.paced_rounds * plan.round_s)
    return {
        "streams": num,
        "gateways": num_gateways,
        "paced events/s": round(num / plan.round_s),
        "CPU of one core": cores,
        "CPU ms/s a stream": 1000 * cores / num,
        "lag p50, ms": lags["p50"],
        "lag p99, ms": lags["p99"],
        "events a CPU second": round(num * (fast_rounds + 1) / max(fast_s, TICK_S)),
        "KB a stream": memory / num / 1024,
        "events lost": herd.num_events - found["num_events"],
    }


def recoveries(plan: Plan) -> Row:
    """Times from kill -9 of a gateway to the next event of each of its streams, at another gateway."""
    times: list[float] = []
    num_lost = 0
    for _ in range(plan.orphan_rounds):
        with EmbeddedRedis() as server, gateway_processes(server.url, 2) as gateways:
            herd = Herd(server.url, plan.orphans).begin()
            with gateway_readers(gateways, herd.job_ids, first=1) as readers:
                readers.wait_until_open()
                herd.say()
                os.kill(gateways[0].pid, signal.SIGKILL)
                killed_s = time()
                for _ in range(round(3 / plan.orphan_round_s)):
                    herd.say()
                    sleep(plan.orphan_round_s)
                herd.end()
                found = readers.finish()
        times += [at_s - killed_s for at_s in found["resumed_s"]]
        num_lost += herd.num_events - found["num_events"]
    cuts = percentiles_ms(times)
    return {
        "streams of the killed gateway": plan.orphans,
        "p50, ms": cuts["p50"],
        "p99, ms": cuts["p99"],
        "slowest, ms": 1000 * max(times),
        "events lost or repeated": num_lost,
    }


def submissions(num: int) -> Row:
    """Jobs submitted one after another, over one connection and by the Python client."""
    with EmbeddedRedis() as server, StandIn(server.url), gateway_process(server.url) as gateway:
        connection = gateway.connect()
        body = json.dumps({"prompt": PROMPT, "sampling": {"max_tokens": 1}})
        before_s, started_s = gateway.cpu_s, perf_counter()
        for _ in range(num):
            connection.request("POST", "/v1/jobs", body)
            connection.getresponse().read()
        took_s, cpu_s = perf_counter() - started_s, gateway.cpu_s - before_s
    return {"requests/s": round(num / took_s), "requests a CPU second": round(num / max(cpu_s, TICK_S))}


def measure(plan: Plan) -> Iterator[Table]:
    yield Table(list(first_tokens(plan.first_tokens)))
    yield Table([streams(plan, *numbers) for numbers in plan.streams])
    yield Table([recoveries(plan)])
    yield Table([submissions(plan.submissions)])


BENCHMARK = Benchmark("gateway", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
