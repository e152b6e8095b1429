"""The cost of being watched: tokens a second with and without logs and metrics, and of one scrape.

    python -m benchmarks.observing [--write]

Two workers of the bundled model take turns with the same jobs, 256 at a time: one logs errors only and serves
no metrics, the other logs as by default and is scraped every second. What both do, counting steps and jobs,
is measured by itself.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic, perf_counter, process_time
from urllib.request import urlopen

import psutil

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.stats import StepFigures

NUM_ROWS = 256
SAMPLING = SamplingParams(max_tokens=64, ignore_eos=True)
ROUNDS = 6
NUM_SCRAPES = 200
SCRAPE_S = 1.0
NUM_STEPS = 5000

#: What is compared: by what readers see, the part of the report.
MEASURED = {"tokens a second": "tokens_per_s", "the worker's processor time, s": "worker_cpu_s"}

#: Rows that drew their last token in the same step are one group.
NUM_GROUPS = 8


def measure() -> Report:
    port = _free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with (
        warm_worker(NUM_ROWS, SAMPLING, log_level="error", metrics_port=0) as quiet,
        warm_worker(NUM_ROWS, SAMPLING, log_level="info", metrics_port=port) as watched,
    ):
        idle_ms, num_bytes = _scrape_ms(url)
        rates: dict[str, list[float]] = {"quiet": [], "watched": []}
        cpu_s: dict[str, list[float]] = {"quiet": [], "watched": []}
        for number in range(ROUNDS):
            turns = [("quiet", quiet), ("watched", watched)]
            for name, queue in turns if number % 2 else reversed(turns):
                before_s = _cpu_s(queue.pid)
                rates[name].append(round(_rate(queue, url if name == "watched" else "")))
                cpu_s[name].append(round(_cpu_s(queue.pid) - before_s, 2))
    return {
        "benchmark": "observing",
        "rows": NUM_ROWS,
        "tokens_per_s": rates,
        "worker_cpu_s": cpu_s,
        "scrape": {"ms": idle_ms, "bytes": num_bytes},
        "counting_us": _counting_us(),
        "conditions": conditions(),
    }


def _rate(queue: Queue, url: str) -> float:
    with _scraping(url):
        return queue.tokens_per_s(NUM_ROWS, SAMPLING)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def _scraping(url: str) -> Iterator[None]:
    """Scrape once a second within the block, unless `url` is empty."""
    has_ended = threading.Event()

    def scrape() -> None:
        while url and not has_ended.is_set():
            with urlopen(url) as reply:
                reply.read()
            has_ended.wait(SCRAPE_S)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def _scrape_ms(url: str) -> tuple[float, int]:
    """The median time of a scrape of an idle worker, and its length."""
    times_s, num_bytes = [], 0
    for _ in range(NUM_SCRAPES):
        started_s = perf_counter()
        with urlopen(url) as reply:
            num_bytes = len(reply.read())
        times_s.append(perf_counter() - started_s)
    return round(1000 * median(times_s), 2), num_bytes


def _counting_us() -> float:
    """Processor time to count one step in which each row draws a token, in a few groups of equal gaps."""
    figures, drawn_s = StepFigures(), [0.01 * (row % NUM_GROUPS) for row in range(NUM_ROWS)]
    started_s = process_time()
    for _ in range(NUM_STEPS):
        now_s = monotonic()
        figures = figures.with_forward(
            NUM_ROWS, NUM_ROWS, 0.05, NUM_ROWS, [now_s - before_s for before_s in drawn_s]
        )
    return round(1e6 * (process_time() - started_s) / NUM_STEPS, 1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tables(report: Report) -> Iterator[Table]:
    rows = [_compared(name, report[key]) for name, key in MEASURED.items()]
    head = ["of 256 rows", "unwatched", "watched", "watched / unwatched", "in the rounds"]
    yield Table(head, rows, "Logs and a scrape a second, medians of rounds that take turns")
    scrape = report["scrape"]
    yield Table(
        ["a scrape, ms", "its bytes", "counting a step of 256 rows, us"],
        [[scrape["ms"], scrape["bytes"], report["counting_us"]]],
    )


def _compared(name: str, values: dict[str, list[float]]) -> list[str | float]:
    ratios = [one / other for one, other in zip(values["watched"], values["quiet"], strict=True)]
    medians = [median(values[which]) for which in ("quiet", "watched")]
    return [name, *medians, median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"]


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or "")
