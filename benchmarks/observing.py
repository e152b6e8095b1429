"""The cost of being watched: tokens a second with and without logs and metrics, and of one scrape.

    python -m benchmarks.observing [--write]

Two workers of the bundled model take turns with the same jobs, 256 at a time: one logs errors only and serves
no metrics, the other logs as by default and is scraped every second. What both do, counting steps and jobs,
is measured by itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from threading import Event, Thread
from time import monotonic, process_time
from urllib.request import urlopen

from benchmarks.harness import Benchmark, in_turns, main, timed_s
from benchmarks.process_figures import cpu_s
from benchmarks.report import Row, Table
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.local.redis_server import free_port
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.stats import StepFigures

SCRAPE_S = 1.0
#: Rows that drew their last token in the same step are one group.
NUM_GROUPS = 8


@dataclass(frozen=True)
class Plan:
    rows: int = 256
    max_tokens: int = 64
    rounds: int = 6
    num_scrapes: int = 200
    num_steps: int = 5000


def measure(plan: Plan) -> Iterator[Table]:
    port = free_port()
    url, sampling = f"http://127.0.0.1:{port}/metrics", SamplingParams(max_tokens=plan.max_tokens)
    sampling = sampling.model_copy(update={"ignore_eos": True})

    def turn(queue: Queue, url: str) -> tuple[float, float]:
        before_s = cpu_s(queue.pid)
        with scraping(url):
            speed = queue.tokens_per_s(plan.rows, sampling)
        return speed, cpu_s(queue.pid) - before_s

    with (
        warm_worker(plan.rows, sampling, log_level="error", metrics_port=0) as quiet,
        warm_worker(plan.rows, sampling, log_level="info", metrics_port=port) as watched,
    ):
        idle_s, num_bytes = scrape_s(url, plan.num_scrapes)
        ways = {"quiet": partial(turn, quiet, ""), "watched": partial(turn, watched, url)}
        found = in_turns(ways, plan.rounds)
    speeds, times_s = ([[one[place] for one in found[way]] for way in ways] for place in (0, 1))
    rows = [
        compared(f"of {plan.rows} rows", "tokens a second", *speeds),
        compared(f"of {plan.rows} rows", "the worker's processor time, s", *times_s),
    ]
    yield Table(rows, "Logs and a scrape a second, medians of rounds that take turns")
    counting = {f"counting a step of {plan.rows} rows, us": counting_us(plan)}
    yield Table([{"a scrape, ms": 1000 * idle_s, "its bytes": num_bytes, **counting}])


@contextmanager
def scraping(url: str) -> Iterator[None]:
    """Scrape once a second within the block, unless `url` is empty."""
    has_ended = Event()

    def scrape() -> None:
        while url and not has_ended.is_set():
            with urlopen(url) as reply:
                reply.read()
            has_ended.wait(SCRAPE_S)

    thread = Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def scrape_s(url: str, num: int) -> tuple[float, int]:
    """The median time of a scrape of an idle worker, and its length."""
    pages: list[bytes] = []

    def scrape() -> None:
        with urlopen(url) as reply:
            pages.append(reply.read())

    return median(timed_s(scrape) for _ in range(num)), len(pages[-1])


def counting_us(plan: Plan) -> float:
    """Processor time to count one step in which each row draws a token, in a few groups of equal gaps."""
    drawn_s = [0.01 * (row % NUM_GROUPS) for row in range(plan.rows)]

    def count() -> None:
        figures = StepFigures()
        for _ in range(plan.num_steps):
            gaps_s = [monotonic() - before_s for before_s in drawn_s]
            figures = figures.with_forward(plan.rows, plan.rows, 0.05, plan.rows, gaps_s)

    return 1e6 * timed_s(count, process_time) / plan.num_steps


def compared(head: str, name: str, quiet: list[float], watched: list[float]) -> Row:
    ratios = [one / other for one, other in zip(watched, quiet, strict=True)]
    return {
        head: name,
        "unwatched": quiet,
        "watched": watched,
        "watched / unwatched": ratios,
        "in the rounds": f"{min(ratios):.2f} to {max(ratios):.2f}",
    }


BENCHMARK = Benchmark("observing", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
