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
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import PROMPTS
from benchmarks.speed.files import MEDIUM, RandomFile
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.tasks.connection import connect
from llama_herd.tasks.events import End, Token, parse_event
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings

ROWS = 32
MEDIUM_Q4_0 = "1.1B Q4_0"
CONTEXT_TOKENS = 512
ROUNDS = 3
#: What is done before the first round.
WARM_UP = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


@dataclass(frozen=True)
class Load:
    """One model, and how many tokens each of its jobs is to have."""

    name: str
    path: Path
    max_tokens: int

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.max_tokens, temperature=0, ignore_eos=True)

    def settings(self, threads: int) -> dict[str, object]:
        context = {} if self.path == BUNDLED_MODEL else {"context_tokens": CONTEXT_TOKENS}
        return {"model": self.path, "dtype": "auto", "threads": threads, **context}


@dataclass
class Run:
    """One model with so many threads."""

    model: str
    threads: int
    step_ms: float = 0.0  # of the bare engine, while all rows decode
    engine_tokens_per_s: list[float] = field(default_factory=list)
    queue_tokens_per_s: list[float] = field(default_factory=list)
    gap_ms: dict[str, float] = field(default_factory=dict)  # of a stream while all rows decode

    @property
    def share(self) -> float:
        return median(self.queue_tokens_per_s) / median(self.engine_tokens_per_s)


class BareEngine:
    """The engine in this process, without a queue."""

    def __init__(self, load: Load, threads: int) -> None:
        settings = WorkerSettings.read(**{**load.settings(threads), "slots": ROWS})
        self._model = LoadedModel.load(settings, "cpu")
        self._engine = self._model.engine(settings, self._count)
        self._num_tokens = 0
        self._full_steps_s: list[float] = []

    def tokens_per_s(self, sampling: SamplingParams) -> float:
        """From the first submission to the last end."""
        self._num_tokens, started_s = 0, perf_counter()
        for number in range(ROWS):
            job = GenerationJob(prompt=PROMPTS[number % len(PROMPTS)], sampling=sampling)
            self._engine.submit(*self._model.sequences(f"{started_s}-{number}", job, now_ms=0))
        while self._engine.has_work:
            before, step_started_s = self._num_tokens, perf_counter()
            self._engine.step()
            if self._num_tokens - before == ROWS:
                self._full_steps_s.append(perf_counter() - step_started_s)
        return self._num_tokens / (perf_counter() - started_s)

    @property
    def step_ms(self) -> float:
        return 1000 * median(self._full_steps_s)

    def _count(self, outputs: list[StepOutput]) -> None:
        self._num_tokens += sum(len(output.ids) for output in outputs)


def measure() -> Report:
    cores = len(os.sched_getaffinity(0))
    with TemporaryDirectory() as folder:
        medium = RandomFile("1.1B", MEDIUM, "Q4_0")
        loads = (
            Load(BUNDLED_MODEL.stem, BUNDLED_MODEL, 192),
            Load(MEDIUM_Q4_0, medium.write(Path(folder)), 64),
        )
        runs = [_run(load, threads) for load in loads for threads in sorted({max(1, cores - 1), cores})]
    return {
        "benchmark": "queue_cost",
        "rows": ROWS,
        "runs": [{**asdict(run), "share": run.share} for run in runs],
        "conditions": conditions(),
    }


def _run(load: Load, threads: int) -> Run:
    run, engine = Run(load.name, threads), BareEngine(load, threads)
    with warm_worker(ROWS, WARM_UP, **load.settings(threads)) as queue:
        engine.tokens_per_s(WARM_UP)
        for _ in range(ROUNDS):
            run.engine_tokens_per_s.append(engine.tokens_per_s(load.sampling))
            run.queue_tokens_per_s.append(queue.tokens_per_s(ROWS, load.sampling))
        gaps_s = _gaps_s(queue, load)
    run.step_ms = engine.step_ms
    cuts = quantiles(gaps_s, n=100, method="inclusive")
    run.gap_ms = {f"p{percent}": 1000 * cuts[percent - 1] for percent in (50, 95, 99)}
    return run


def _gaps_s(queue: Queue, load: Load) -> list[float]:
    """Between two tokens of a stream, from the last job's first token to the first job's end."""
    with _listening(queue.url) as heard:
        queue.tokens_per_s(ROWS, load.sampling)
    tokens_s, ends_s = defaultdict[str, list[float]](list), []
    for at_s, data in heard:
        match parse_event(data):
            case Token(job=job_id):
                tokens_s[job_id].append(at_s)
            case End():
                ends_s.append(at_s)
    since_s, until_s = max(times[0] for times in tokens_s.values()), min(ends_s)
    return [
        after - before
        for times in tokens_s.values()
        for before, after in pairwise(times)
        if since_s <= before and after <= until_s
    ]


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


def tables(report: Report) -> Iterator[Table]:
    head = ["model", "threads", "step ms", "engine", "through the queue", "share", "gap p50 ms", "gap p99 ms"]
    head.append("p99 / step")
    rows: list[list[str | float]] = [
        [
            *(run["model"], run["threads"], run["step_ms"]),
            *(median(run[f"{way}_tokens_per_s"]) for way in ("engine", "queue")),
            *(run["share"], run["gap_ms"]["p50"], run["gap_ms"]["p99"]),
            run["gap_ms"]["p99"] / run["step_ms"],
        ]
        for run in report["runs"]
    ]
    yield Table(head, rows, f"Tokens a second of {report['rows']} jobs")


def for_readme(report: Report) -> str:
    """What the queue costs a model of a size that is used."""
    cores = report["conditions"]["cores"]
    shares = ", ".join(
        f"{100 * run['share']:.3g} % on {run['threads']} of {cores} cores"
        for run in report["runs"]
        if run["model"] == MEDIUM_Q4_0
    )
    return (
        f"Through Redis, Celery and the token channel, {report['rows']} jobs of {MEDIUM_Q4_0} reach of the\n"
        f"engine's tokens a second: {shares}\n"
        "([more](docs/measured.md#the-cost-of-the-queue))."
    )


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or "", for_readme)
