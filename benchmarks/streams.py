"""Streams of many jobs, whose events come as from a worker's steps, and processes that read them all.

python -m benchmarks.streams gateways FIRST URL ...      # ids of jobs on standard input
python -m benchmarks.streams client URL
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import time
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import redis

from benchmarks.processes import Gateway, process
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.events import End, Event, Started, Token
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.script_events import EmitEntry

OWNER = "bench"
#: Jobs whose events one call writes, as a batch of so many rows does.
ROWS = 50


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
        for lot in self._lots:
            self._emit([Started(seq=1, job=job_id, **same) for job_id in lot], 0)
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
        tokens = [Token(seq=seq, job=one, epoch=1, i=i, ids=(i,), text=text) for one in self._lots[place]]
        self._emit(tokens, i)
        self._seqs[place] = seq

    @property
    def num_events(self) -> int:
        """How many all jobs have had together, their ends included."""
        return sum((seq + 1) * len(lot) for seq, lot in zip(self._seqs, self._lots, strict=True))

    def end(self) -> None:
        same: dict[str, Any] = {"epoch": 1, "finish_reason": "stop", "attempts": 1}
        for seq, lot in zip(self._seqs, self._lots, strict=True):
            self._emit([End(seq=seq + 1, job=one, n=seq - 1, **same) for one in lot], seq - 1)

    def _emit(self, events: Sequence[Event], num_tokens: int) -> None:
        run_call(
            self._redis,
            self._ledger.emit(OWNER, [EmitEntry.from_event(event, num_tokens) for event in events]),
        )


@dataclass(frozen=True)
class Readers:
    """A process that reads one stream of each job."""

    process: Any

    def wait_until_open(self) -> None:
        """Wait until each stream has begun."""
        assert self.process.stdout.readline() == "open\n"

    def finish(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@contextmanager
def readers(job_ids: Sequence[str], *arguments: str) -> Iterator[Readers]:
    with process("-m", "benchmarks.streams", *arguments) as found:
        assert found.stdin is not None
        found.stdin.write("\n".join(job_ids))
        found.stdin.close()
        found.stdin = None
        yield Readers(found)


@contextmanager
def gateway_readers(gateways: Sequence[Gateway], job_ids: Sequence[str], first: int = 0) -> Iterator[Readers]:
    """They read from the gateways in turn, or all from the `first` few."""
    urls = [gateway.url for gateway in gateways]
    with readers(job_ids, "gateways", str(first or len(urls)), *urls) as found:
        yield found


@dataclass
class Reading:
    """What all streams of a process have brought. Lags are in the order in which the events came."""

    num_jobs: int
    num_events: int = 0
    num_begun: int = 0
    lags: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)

    def token(self, text: str) -> None:
        self.lags.append(time() - float(text))

    def started(self) -> None:
        self.num_begun += 1
        if self.num_begun == self.num_jobs:
            print("open", flush=True)

    def tell(self) -> None:
        names = ("num_events", "lags", "resumed_s")
        print(json.dumps({name: getattr(self, name) for name in names}), flush=True)


class GatewayStreams:
    """Streams over HTTP, each over a connection of its own."""

    def __init__(self, urls: Sequence[str], first: int, reading: Reading) -> None:
        self._places = [urlsplit(url) for url in urls]
        self._first = first
        self._reading = reading

    async def read(self, number: int, job_id: str) -> None:
        """One stream. Where it breaks off it goes on at the next gateway."""
        place, last = number % self._first, 0
        while True:
            before = last
            with suppress(OSError):
                async for line in self._lines(self._places[place], job_id, last):
                    if before and last == before:
                        self._reading.resumed_s.append(time())
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
        self._reading.num_events += 1
        if b'"type":"token"' in line:
            self._reading.token(json.loads(line)["text"])
        elif b'"type":"started"' in line:
            self._reading.started()
        return b'"type":"end"' in line


async def read_by_gateways(first: str, *urls: str) -> None:
    job_ids = sys.stdin.read().split()
    reading = Reading(len(job_ids))
    streams = GatewayStreams(urls, int(first), reading)
    await asyncio.gather(*(streams.read(*one) for one in enumerate(job_ids)))
    reading.tell()


async def read_by_client(url: str) -> None:
    job_ids = sys.stdin.read().split()
    reading = Reading(len(job_ids))

    async def follow(job_id: str) -> None:
        async for event in client.stream(job_id):
            reading.num_events += 1
            if isinstance(event, Token):
                reading.token(event.text)
            elif isinstance(event, Started):
                reading.started()

    async with AsyncClient(url) as client:
        await asyncio.gather(*map(follow, job_ids))
    reading.tell()


if __name__ == "__main__":
    asyncio.run((read_by_client if sys.argv[1] == "client" else read_by_gateways)(*sys.argv[2:]))
