"""How long the worst messages and forms of outputs hold up a worker's other jobs.

    python -m benchmarks.hostile_messages [--write]

A worker with the bundled model, whose rows always have a job that streams each token. Beside it come bare
messages of nearly the longest size, and jobs with forms that take long to build. The pause is the longest
time between two tokens; the first row is without anything beside.
"""

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from redis import Redis

from benchmarks.harness import Benchmark, main
from benchmarks.report import Row, Table
from benchmarks.warm_worker import Queue, warm_worker
from benchmarks.worst_inputs import SHAPES
from llama_herd.errors import HerdError
from llama_herd.tasks.protocol.events import Token
from llama_herd.tasks.protocol.sampling import SamplingParams
from tests.chaos.harness.malformed import QUEUE, celery_message
from tests.chaos.harness.patience import wait_until

#: Less than a worker reads, once it is base64 in a message.
BODY_BYTES = 1_500_000
SAMPLING = SamplingParams(max_tokens=400, ignore_eos=True, seed=1)

#: Fields of jobs whose forms are near what may be asked for.
FORMS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "counted repeats": lambda: {"structured_outputs": {"regex": "((a{1,60}){1,60}b){1,60}"}},
    "alternatives that share beginnings": lambda: {"structured_outputs": {"regex": "(a|aa|aaa|.*a){1,500}$"}},
    "many choices": lambda: {"structured_outputs": {"choice": [f"x{number:05}" for number in range(20_000)]}},
    "a deep schema": lambda: _schema(_nested(300)),
    "a wide schema": lambda: _schema({"enum": [f"x{number}" for number in range(15_000)]}),
    "many properties": lambda: _schema(
        {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(3000)}}
    ),
    "a deep grammar": lambda: {
        "structured_outputs": {
            "grammar": "start: a0\n"
            + "".join(f"a{n}: a{n + 1} a{n + 1}?\n" for n in range(2000))
            + 'a2000: "x"\n'
        }
    },
    "an ambiguous grammar": lambda: {
        "structured_outputs": {"grammar": 'start: e\ne: e e | e "+" e | "x" | \n'}
    },
}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


class TokenGaps:
    """Streams one job after the other, and keeps the longest time between two tokens."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._stream, daemon=True)
        self.longest_s = 0.0

    def __enter__(self) -> "TokenGaps":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _stream(self) -> None:
        client = self._queue.client
        while not self._is_over.is_set():
            last_s = None
            job_id = client.submit(prompt="Once upon a time", sampling=SAMPLING, flush_ms=0, priority=5)
            for event in client.stream(job_id):
                if isinstance(event, Token):
                    now_s = perf_counter()
                    self.longest_s = max(self.longest_s, now_s - (last_s or now_s))
                    last_s = now_s


def push(redis: Redis, name: str) -> None:
    """A bare message with this shape in it, and a while for the worker to read it."""
    body = f'[[], {{"prompt": "x", "x": {SHAPES[name](BODY_BYTES)}}}, {{}}]'
    redis.lpush(QUEUE, celery_message(raw_body=base64.b64encode(body.encode()).decode()))
    wait_until(lambda: not redis.llen(QUEUE), "the message is taken")
    sleep(1.0)


def ask(queue: Queue, fields: dict[str, Any]) -> None:
    """A job with this form, up to its end."""
    with suppress(HerdError, TimeoutError):
        job_id = queue.client.submit(prompt="x", max_tokens=8, timeout_s=30, **fields)
        queue.client.result(job_id)


@dataclass(frozen=True)
class Plan:
    rows: int = 4


def measure(plan: Plan) -> Iterator[Table]:
    with warm_worker(plan.rows, SamplingParams(max_tokens=32)) as queue, Redis.from_url(queue.url) as redis:
        acts: dict[str, Callable[[], None]] = {"nothing": lambda: sleep(2.0)}
        acts |= {f"message: {name}": lambda name=name: push(redis, name) for name in SHAPES}  # type: ignore[misc]
        acts |= {name: lambda make=make: ask(queue, make()) for name, make in FORMS.items()}  # type: ignore[misc]
        rows = list[Row]()
        for name, act in acts.items():
            with TokenGaps(queue) as gaps:
                started_s = perf_counter()
                act()
                took_s = perf_counter() - started_s
            rows.append({"beside": name, "pause, ms": 1000 * gaps.longest_s, "took, s": took_s})
    yield Table(rows, "The longest time without a token of another job")


HOSTILE = Benchmark("hostile_messages", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(HOSTILE)
