"""What the queue costs: tokens a second through Redis, Celery and the token channel, beside the bare engine.

    python -m benchmarks.queue_cost [--write]

Two models, the bundled one and a random one of the 1.1B shape in Q4_0, with threads on all cores and on all
but one. Engine and worker take turns with the same jobs, as many as there are slots, from the first
submission to the last end. In a turn more, a listener notes when each token comes; gaps count while all rows
decode.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter
from typing import Any

from benchmarks.harness import Benchmark, in_turns, main, percentile
from benchmarks.jobs import greedy, prompts
from benchmarks.report import Report, Row, Table, number
from benchmarks.speed.files import MEDIUM, RandomFile
from benchmarks.timed_engine import TimedEngine
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.protocol.events import End, Token, parse_event
from llama_herd.tasks.protocol.sampling import SamplingParams

MEDIUM_Q4_0 = "1.1B Q4_0"


@dataclass(frozen=True)
class Plan:
    rows: int = 32
    rounds: int = 3
    bundled_tokens: int = 192
    medium_tokens: int = 64
    context_tokens: int = 512  # of the larger model


def measure(plan: Plan) -> Iterator[Table]:
    cores = len(os.sched_getaffinity(0))
    with TemporaryDirectory() as folder:
        medium = RandomFile("1.1B", MEDIUM, "Q4_0").write(Path(folder))
        models: list[tuple[str, int, dict[str, Any]]] = [
            (BUNDLED_MODEL.stem, plan.bundled_tokens, {"model": BUNDLED_MODEL}),
            (MEDIUM_Q4_0, plan.medium_tokens, {"model": medium, "context_tokens": plan.context_tokens}),
        ]
        rows = [
            run(name, greedy(max_tokens), {**fields, "threads": threads}, plan)
            for name, max_tokens, fields in models
            for threads in sorted({max(1, cores - 1), cores})
        ]
    yield Table(rows, f"Tokens a second of {plan.rows} jobs")


def run(name: str, sampling: SamplingParams, fields: dict[str, Any], plan: Plan) -> Row:
    """One model with so many threads."""
    engine, full_steps_s = TimedEngine.load(**fields, slots=plan.rows), list[float]()

    def by_engine() -> float:
        trace = engine.begin()
        for row, prompt in enumerate(prompts(plan.rows)):
            engine.submit(f"{trace.started_s}-{row}", prompt, sampling)
        while engine.engine.has_work:
            before, took_s = trace.num_tokens, engine.step()
            if trace.num_tokens - before == plan.rows:
                full_steps_s.append(took_s)
        return trace.tokens_per_s

    with warm_worker(plan.rows, greedy(4), **fields) as queue:
        ways = {"engine": by_engine, "queue": lambda: queue.tokens_per_s(plan.rows, sampling)}
        found = in_turns(ways, plan.rounds)
        gaps_ms = [1000 * gap for gap in gaps_s(queue, plan.rows, sampling)]
    step_ms, gap_ms = 1000 * median(full_steps_s), percentile(gaps_ms, 99)
    return {
        "model": name,
        "threads": fields["threads"],
        "step ms": step_ms,
        "engine": found["engine"],
        "through the queue": found["queue"],
        "share": median(found["queue"]) / median(found["engine"]),
        "gap p50 ms": median(gaps_ms),
        "gap p99 ms": gap_ms,
        "p99 / step": gap_ms / step_ms,
    }


def gaps_s(queue: Queue, num_rows: int, sampling: SamplingParams) -> list[float]:
    """Between two tokens of a stream, from the last job's first token to the first job's end."""
    with _listening(queue.url) as heard:
        queue.tokens_per_s(num_rows, sampling)
    tokens_s, ends_s = defaultdict[str, list[float]](list), []
    for at_s, data in heard:
        match parse_event(data):
            case Token(job=job_id):
                tokens_s[job_id].append(at_s)
            case End():
                ends_s.append(at_s)
    since_s, until_s = max(times[0] for times in tokens_s.values()), min(ends_s)
    gaps = [gap for times in tokens_s.values() for gap in pairwise(times)]
    return [after - before for before, after in gaps if since_s <= before and after <= until_s]


@contextmanager
def _listening(url: str) -> Iterator[list[tuple[float, bytes]]]:
    """All that is said in the channels of tokens meanwhile, and when it came."""
    heard: list[tuple[float, bytes]] = []
    with connect(url) as redis, redis.pubsub(ignore_subscribe_messages=False) as pubsub:
        pubsub.psubscribe("*:tokens:*")
        pubsub.get_message(timeout=None)

        def listen() -> None:
            for message in pubsub.listen():
                if message["type"] == "punsubscribe":
                    return
                heard.append((perf_counter(), message["data"]))

        thread = Thread(target=listen)
        thread.start()
        yield heard
        pubsub.punsubscribe()
        thread.join()


def for_readme(report: Report) -> str:
    """What the queue costs a model of a size that is used."""
    cores, (table,) = report.conditions["cores"], report.tables
    shares = ", ".join(
        f"{100 * number(row['share']):.3g} % on {row['threads']} of {cores} cores"
        for row in table.rows
        if row["model"] == MEDIUM_Q4_0
    )
    jobs = table.title.removeprefix("Tokens a second of ")
    return (
        f"Through Redis, Celery and the token channel, {jobs} of {MEDIUM_Q4_0} reach of the\n"
        f"engine's tokens a second: {shares}\n"
        "([more](docs/measured.md#the-cost-of-the-queue))."
    )


BENCHMARK = Benchmark("queue_cost", __doc__, Plan(), measure, for_readme=for_readme)

if __name__ == "__main__":
    main(BENCHMARK)
