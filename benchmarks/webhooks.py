"""How soon after the end of a job its webhook arrives, alone and beside a host that does not answer.

    python -m benchmarks.webhooks [--write]

A worker without a model ends the jobs, and one gateway sends. Both times are of one clock: that of the
end is in the webhook. Paced jobs are submitted one by one, others at once. Beside a dead host each job has a
twin that names an address there: it takes connections and never answers.
"""

import asyncio
import json
import re
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from threading import Event, Thread
from time import monotonic, sleep, time
from typing import Any, Self

from redis import Redis
from standardwebhooks import Webhook

from benchmarks.conditions import conditions
from benchmarks.gateway import gateway_process
from benchmarks.measured import Report, Table, run_command
from benchmarks.stand_in import StandIn
from benchmarks.stopwatch import percentiles_ms
from llama_herd.chaos.patience import wait_until
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.ledger.webhook_configs import SENDER
from llama_herd.tasks.webhook_secret import new_secret
from llama_herd.tasks.webhooks.setup import store_webhooks


@dataclass(frozen=True)
class Plan:
    num_jobs: int = 1000
    jobs_per_s: float = 50.0


class Receiver:
    """Notes when each webhook comes, and checks them all in the end. It runs in a thread."""

    def __init__(self) -> None:
        self.secret = new_secret()
        self._came: list[tuple[float, bytes]] = []
        self._has_begun = Event()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True).start()
        self._has_begun.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def tell_of_all(self, redis: Any, *hosts: str) -> None:
        """Let it be told of all ends; jobs may name these hosts."""
        run_dialogue(redis, store_webhooks("default", self.url, hosts, jobs=True, secret=self.secret))

    @property
    def num(self) -> int:
        return len(self._came)

    @property
    def delays_s(self) -> dict[str, float]:
        """How long after the end of each job its webhook came first."""
        found: dict[str, float] = {}
        for came_s, raw in self._came:
            head, _, body = raw.partition(b"\r\n\r\n")
            lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
            told: Any = Webhook(self.secret).verify(body, dict(lines))
            ended_s = datetime.fromisoformat(told["timestamp"]).timestamp()
            found.setdefault(told["data"]["id"], came_s - ended_s)
        return found

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with await asyncio.start_server(self._take, "127.0.0.1", 0, backlog=1024) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            self._has_begun.set()
            await self._stop.wait()

    async def _take(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length
        self._came.append((time(), head + await reader.readexactly(int(length[1]))))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()


def arrivals(plan: Plan, *, is_paced: bool, has_dead: bool) -> dict[str, Any]:
    """Times from the ends of jobs to their webhooks."""
    with (
        EmbeddedRedis() as server,
        socket.create_server(("127.0.0.1", 0), backlog=4096) as dead,
        Receiver() as receiver,
        StandIn(server.url),
        Redis.from_url(server.url) as redis,
        Client(server.url) as client,
    ):
        receiver.tell_of_all(redis, "localhost")
        silent = f"http://localhost:{dead.getsockname()[1]}/"
        with gateway_process(server.url, HERD_GATEWAY_WEBHOOK_PRIVATE="true"):
            wait_until(lambda: redis.exists(SENDER), "the gateway sends")
            began_s = monotonic()
            for number in range(plan.num_jobs):
                if has_dead:
                    client.submit(prompt="x", model="tales", webhook=silent)
                client.submit(prompt="x", model="tales")
                if is_paced:
                    sleep(max(0.0, began_s + (number + 1) / plan.jobs_per_s - monotonic()))
            wait_until(lambda: receiver.num >= plan.num_jobs, "all webhooks have come")
            took_s = monotonic() - began_s
        delays_s = receiver.delays_s
        left = redis.hvals("herd:default:outbox:entries")
    assert len(delays_s) == plan.num_jobs
    assert sum("url" in json.loads(raw) for raw in left) == (plan.num_jobs if has_dead else 0)
    return {
        "jobs": f"{plan.jobs_per_s:g} a second" if is_paced else "at once",
        "beside": "a dead host" if has_dead else "nothing",
        **{f"{name}, ms": ms for name, ms in percentiles_ms(list(delays_s.values())).items()},
        "longest, ms": round(1000 * max(delays_s.values()), 1),
        "webhooks a second": round(plan.num_jobs / took_s, 1),
    }


def measure(plan: Plan) -> Report:
    runs = [
        arrivals(plan, is_paced=is_paced, has_dead=has_dead)
        for is_paced in (True, False)
        for has_dead in (False, True)
    ]
    return {"benchmark": "webhooks", "plan": asdict(plan), "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    runs = report["runs"]
    yield Table(list(runs[0]), [list(run.values()) for run in runs])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
