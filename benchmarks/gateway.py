"""What the gateway costs: time to the first token, streams beside each other, deaths, and submissions.

    python -m benchmarks.gateway [--write]

Events come from a worker's calls without a model, and are read by another process. The gateway's speed is
told by its own CPU time, since all of them share the cores. All streams get an event at once, as in a step.
After the death of its gateway a reader goes on at the next one, from its last event.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import redis
import uvicorn

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.stand_in import StandIn
from benchmarks.stopwatch import percentiles_ms
from benchmarks.warm_worker import warm_worker
from llama_herd.chaos.patience import wait_until
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.events import End, Started, Token
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.script_events import EmitEntry
from llama_herd.tasks.sampling import SamplingParams

OWNER = "bench"
#: Jobs whose events one call writes, as a batch of so many rows does.
ROWS = 50
#: The system counts CPU time in these.
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


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


@dataclass(frozen=True)
class Gateway:
    """A gateway process."""

    url: str
    pid: int

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    @property
    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def connect(self) -> HTTPConnection:
        place = urlsplit(self.url)
        return HTTPConnection(place.hostname or "", place.port, timeout=60)


@contextmanager
def gateway_process(redis_url: str, **variables: str) -> Iterator[Gateway]:
    own = {"HERD_REDIS_URL": redis_url, "HERD_GATEWAY_PORT": "0", "HERD_GATEWAY_OPEN": "true"}
    env = {**os.environ, **own, **variables}
    command = [sys.executable, "-m", "llama_herd.cli", "gateway"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=env, stderr=log, text=True)
        try:
            yield Gateway(_address(process, log), process.pid)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def gateway_processes(redis_url: str, num: int) -> Iterator[list[Gateway]]:
    with ExitStack() as stack:
        yield [stack.enter_context(gateway_process(redis_url)) for _ in range(num)]


def _address(process: subprocess.Popen[str], log: Any) -> str:
    def found() -> re.Match[str] | None:
        log.seek(0)
        return re.search(r"gateway at (http://[\d.:]+)", log.read())

    wait_until(lambda: found() or process.poll() is not None, "the gateway is up")
    match = found()
    if match is None:
        raise RuntimeError("the gateway ended before it was up")
    return match[1]


def first_tokens(plan: Plan) -> dict[str, dict[str, float]]:
    """Times from a request to its first text, in turns by the Python client and through the gateway."""
    sampling = SamplingParams(max_tokens=1, temperature=0)
    by_client, by_http = list[float](), list[float]()
    with warm_worker(1, sampling) as queue, gateway_process(queue.url) as gateway:
        connection = gateway.connect()
        for _ in range(plan.first_tokens):
            by_client.append(_by_client(queue.client, sampling))
            by_http.append(_by_http(connection))
    return {"client": percentiles_ms(by_client), "gateway": percentiles_ms(by_http)}


def _by_client(client: Client, sampling: SamplingParams) -> float:
    started_s = perf_counter()
    job_id = client.submit(prompt="Once upon a time", sampling=sampling)
    took_s = 0.0
    for event in client.stream(job_id):
        if isinstance(event, Token):
            took_s = perf_counter() - started_s
    return took_s


def _by_http(connection: HTTPConnection) -> float:
    body = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 1, "temperature": 0, "stream": True}
    started_s = perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    while not answer.readline().startswith(b"data: "):
        pass
    took_s = perf_counter() - started_s
    answer.read()
    return took_s


class Herd:
    """Jobs whose events are written together, as a worker does."""

    def __init__(self, url: str, num_jobs: int) -> None:
        """The jobs wait."""
        self._redis: Any = redis.Redis.from_url(url)
        self._ledger = Ledger(lease_ms=3_600_000, worker=OWNER)
        with Client(url) as client:
            self.job_ids = [client.submit(prompt="x", job_id=f"{num_jobs}-{n}") for n in range(num_jobs)]
        self._lots = [self.job_ids[start : start + ROWS] for start in range(0, num_jobs, ROWS)]
        #: Number of the last event of each lot's jobs.
        self._seqs = [0] * len(self._lots)

    def begin(self) -> Self:
        """Claim all jobs, and say so."""
        for job_id in self.job_ids:
            run_call(self._redis, self._ledger.claim(job_id, OWNER))
        same: dict[str, Any] = {"epoch": 1, "attempt": 1, "worker": OWNER, "model": "tales", "seed": 7}
        self._emit([EmitEntry.from_event(Started(seq=1, job=job_id, **same), 0) for job_id in self.job_ids])
        self._seqs = [1] * len(self._lots)
        return self

    def say(self) -> None:
        """A token of each job."""
        for number in range(len(self._lots)):
            self.say_to(number)

    def say_to(self, number: int) -> None:
        """A token of each job of a lot, whose text is the time. Lots are counted round and round."""
        place = number % len(self._lots)
        i, seq, text = self._seqs[place] - 1, self._seqs[place] + 1, f"{time():.6f}"
        tokens = (Token(seq=seq, job=one, epoch=1, i=i, ids=(i,), text=text) for one in self._lots[place])
        self._emit([EmitEntry.from_event(token, i) for token in tokens])
        self._seqs[place] = seq

    @property
    def num_events(self) -> int:
        """How many all jobs have had together, their ends included."""
        return sum((seq + 1) * len(lot) for seq, lot in zip(self._seqs, self._lots, strict=True))

    def end(self) -> None:
        same: dict[str, Any] = {"epoch": 1, "finish_reason": "stop", "attempts": 1}
        for seq, lot in zip(self._seqs, self._lots, strict=True):
            ends = (End(seq=seq + 1, job=one, n=seq - 1, **same) for one in lot)
            self._emit([EmitEntry.from_event(end, seq - 1) for end in ends])

    def _emit(self, entries: list[EmitEntry]) -> None:
        for start in range(0, len(entries), ROWS):
            run_call(self._redis, self._ledger.emit(OWNER, entries[start : start + ROWS]))


def streams(plan: Plan, num: int, num_gateways: int) -> dict[str, float]:
    """`num` readers of one job each: at a steady pace, then as fast as events can be written."""
    with EmbeddedRedis() as server, gateway_processes(server.url, num_gateways) as gateways:

        def cpu_s() -> float:
            return sum(gateway.cpu_s for gateway in gateways)

        def rss_bytes() -> int:
            return sum(gateway.rss_bytes for gateway in gateways)

        herd = Herd(server.url, num).begin()
        before_bytes = rss_bytes()
        with Readers.at(gateways, herd.job_ids) as readers:
            readers.wait_until_open()
            memory = rss_bytes() - before_bytes
            paced_s = cpu_s()
            for _ in range(plan.paced_rounds):
                began_s = perf_counter()
                herd.say()
                sleep(max(0.0, plan.round_s - (perf_counter() - began_s)))
            paced_s = cpu_s() - paced_s
            fast_rounds = max(1, plan.fast_events // num)
            fast_s = cpu_s()
            for _ in range(fast_rounds):
                herd.say()
            herd.end()
            found = readers.finish()
            fast_s = cpu_s() - fast_s
        lags = percentiles_ms(found["lags"][: num * plan.paced_rounds])
        num_paced, num_fast = num * plan.paced_rounds, num * (fast_rounds + 1)
        return {
            "streams": num,
            "gateways": num_gateways,
            "paced events/s": round(num / plan.round_s),
            "CPU of one core": round(paced_s / (plan.paced_rounds * plan.round_s), 3),
            "CPU ms/s a stream": round(1000 * paced_s / (plan.paced_rounds * plan.round_s * num), 3),
            "lag p50, ms": lags["p50"],
            "lag p99, ms": lags["p99"],
            "events a CPU second": round(num_fast / max(fast_s, TICK_S)),
            "KB a stream": round(memory / num / 1024, 1),
            "events lost": num_paced + num_fast + num - found["num_events"],
        }


def recoveries(plan: Plan) -> dict[str, float]:
    """Times from kill -9 of a gateway to the next event of each of its streams, at another gateway."""
    times: list[float] = []
    num_lost = 0
    for _ in range(plan.orphan_rounds):
        with EmbeddedRedis() as server, gateway_processes(server.url, 2) as gateways:
            herd = Herd(server.url, plan.orphans).begin()
            with Readers.at(gateways, herd.job_ids, first=1) as readers:
                readers.wait_until_open()
                herd.say()
                gateways[0].kill()
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
        "slowest, ms": round(1000 * max(times), 1),
        "events lost or repeated": num_lost,
    }


class Readers:
    """A process that reads one stream of each job."""

    def __init__(self, command: Sequence[str], job_ids: list[str]) -> None:
        """command: a module and its arguments."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-m", *command], stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n".join(job_ids))
        self._process.stdin.close()
        self._out = self._process.stdout

    @classmethod
    def at(cls, gateways: Sequence[Gateway], job_ids: list[str], first: int = 0) -> Self:
        """One that reads from the gateways in turn, or all from the `first` few."""
        urls = [gateway.url for gateway in gateways]
        return cls(["benchmarks.gateway", "--read", str(first or len(urls)), *urls], job_ids)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def wait_until_open(self) -> None:
        """Wait until each stream has begun."""
        assert self._out.readline() == "open\n"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def finish(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._out.readline())
        return found


class Reading:
    """All streams in one process. Lags are in the order in which the events came."""

    def __init__(self, urls: Sequence[str], first: int, job_ids: Sequence[str]) -> None:
        self._places = [urlsplit(url) for url in urls]
        self._first = first
        self._job_ids = job_ids
        self._lags: list[float] = []
        self._resumed_s: list[float] = []
        self._num_events = self._begun = 0
        self._all_open = asyncio.Event()

    async def run(self) -> None:
        """Read every stream to its end."""
        reading = [asyncio.create_task(self._read(*one)) for one in enumerate(self._job_ids)]
        await self._all_open.wait()
        print("open", flush=True)
        await asyncio.gather(*reading)
        found = {"num_events": self._num_events, "lags": self._lags, "resumed_s": self._resumed_s}
        print(json.dumps(found), flush=True)

    async def _read(self, number: int, job_id: str) -> None:
        """One stream. Where it breaks off it goes on at the next gateway."""
        place, last = number % self._first, 0
        while True:
            before = last
            with suppress(OSError):
                async for line in self._lines(self._places[place], job_id, last):
                    if before and last == before:
                        self._resumed_s.append(time())
                    last += 1
                    if self._note(line):
                        return
            place = (place + 1) % len(self._places)

    async def _lines(self, place: SplitResult, job_id: str, last: int) -> AsyncGenerator[bytes]:
        """The data of the events after the last one."""
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        head = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {last}\r\n\r\n"
        writer.write(head.encode())
        while line := await reader.readline():
            if line.startswith(b"data: ") and b'"type":"queued"' not in line:
                yield line[6:]
        writer.close()

    def _note(self, line: bytes) -> bool:
        """Count an event. Whether it is the last one."""
        self._num_events += 1
        if b'"type":"token"' in line:
            self._lags.append(time() - float(json.loads(line)["text"]))
        elif b'"type":"started"' in line:
            self._begun += 1
            if self._begun == len(self._job_ids):
                self._all_open.set()
        return b'"type":"end"' in line


def submissions(plan: Plan) -> dict[str, float]:
    """Jobs submitted one after another, over one connection and by the Python client."""
    with EmbeddedRedis() as server, StandIn(server.url), gateway_process(server.url) as gateway:
        connection = gateway.connect()
        body = json.dumps({"prompt": "Once upon a time", "sampling": {"max_tokens": 1}})
        before_s, started_s = gateway.cpu_s, perf_counter()
        for _ in range(plan.submissions):
            connection.request("POST", "/v1/jobs", body)
            connection.getresponse().read()
        took_s, cpu_s = perf_counter() - started_s, gateway.cpu_s - before_s
    return {
        "requests/s": round(plan.submissions / took_s),
        "requests a CPU second": round(plan.submissions / max(cpu_s, TICK_S)),
    }


def measure(plan: Plan) -> Report:
    return {
        "benchmark": "gateway",
        "plan": asdict(plan),
        "conditions": conditions() | {"uvicorn": uvicorn.__version__},
        "first_tokens_ms": first_tokens(plan),
        "streams": [streams(plan, *numbers) for numbers in plan.streams],
        "recoveries": recoveries(plan),
        "submissions": submissions(plan),
    }


def tables(report: Report) -> Iterator[Table]:
    cuts = ("p50", "p95", "p99")
    rows = [[name, *(found[cut] for cut in cuts)] for name, found in report["first_tokens_ms"].items()]
    yield Table(["first token, ms", *cuts], rows)
    runs = report["streams"]
    yield Table(list(runs[0]), [list(run.values()) for run in runs])
    for found in (report["recoveries"], report["submissions"]):
        yield Table(list(found), [list(found.values())])


if __name__ == "__main__":
    if "--read" in sys.argv:
        asyncio.run(Reading(sys.argv[3:], int(sys.argv[2]), sys.stdin.read().split()).run())
    else:
        run_command(lambda: measure(Plan()), tables, __doc__ or "")
