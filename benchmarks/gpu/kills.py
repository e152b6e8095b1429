"""Two workers that share the card are killed in turn while their jobs run: what readers see of it."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from socket import gethostname
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.queue_runs import FORMAT, ROOT
from benchmarks.gpu.trace import requests
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Started
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.local.tended_worker import TendedWorker

NUM_KILLS = 3
#: Streams that are read meanwhile, of each kill.
NUM_WATCHED = 16
#: Tokens that half of the jobs have when a worker is killed.
NUM_BEFORE = 20
#: Of the card's memory, for each of the workers.
SHARE = 0.45


class CardHerd(Herd):
    """Its workers draw their weights on the card."""

    def start_worker(self, **settings: Any) -> TendedWorker:
        name = f"card-{next(self._numbers)}"
        log, node = self._folder / f"{name}.log", f"{name}@{gethostname()}"
        command = ["benchmarks.gpu.worker", self.settings.device, "worker", "--name", name]
        worker = TendedWorker(self.settings, node, log, command=command, cwd=ROOT)
        self._workers.append(worker)
        return worker.start()


class Undisturbed:
    """The ids of each prompt when nobody was killed."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def ids(self, job_id: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
        return self.known[fields["prompt_ids"]]


class Kill(NamedTuple):
    """What came of one kill: the longest gaps of the watched streams that it has met."""

    job_ids: list[str]
    gaps_s: list[float]
    back_s: float  # until two workers are ready again


def kills(bench: Bench) -> Iterator[Measurement]:
    """Each kill has its part of the jobs. Raises RuntimeError if a law of the chaos harness is broken.

    Greedy ids of random weights have near ties, which other rows in the step may turn: those that differ are
    counted, beside those of jobs that no kill has met.
    """
    load, calm = bench.scale.killed, Undisturbed()
    settings = bench.settings(bench.hollow_model(FORMAT), load).model_dump(exclude_unset=True)
    settings |= {"memory_share": SHARE, "deterministic": bench.device.type == "cpu"}
    asked: list[dict[str, Any]] = [
        {"prompt": None, "prompt_ids": ids, "sampling": params.model_dump(exclude_unset=True)}
        for ids, params in requests(load, bench.scale.config.vocab_size, seed=5)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="herd-kills-") as logs,
        FragileRedis() as server,
        CardHerd(server, folder=Path(logs), reference=calm, **settings) as herd,
    ):
        workers = herd.start_workers(2)
        results = herd.jobs.results([herd.jobs.accept(fields, "calm") for fields in asked])
        calm.known = {fields["prompt_ids"]: one.ids for fields, one in zip(asked, results, strict=True)}
        kills = [_killed(herd, workers, asked[number::NUM_KILLS], number % 2) for number in range(NUM_KILLS)]
        broken = [one for one in herd.verdict().violations if one.law != "undisturbed"]
        note = _note(herd, [job_id for kill in kills for job_id in kill.job_ids], calm)
    gaps_s = [seconds for kill in kills for seconds in kill.gaps_s]
    case = f"2 workers on the card, {load.num_requests} jobs of {load.num_out} tokens, {NUM_KILLS} x kill -9"
    parts = {
        "gap of a resumed stream p50": gaps_s,
        "longest": [max(gaps_s, default=0.0)],
        "a worker is back": [kill.back_s for kill in kills],
    }
    for part, seconds in parts.items():
        if seconds:
            said = f"{note}, {len(broken)} bad"
            yield bench.measurement("kills", FORMAT, case, "s", seconds, None, said, part)
    if broken:
        raise RuntimeError("\n".join(map(str, broken)))


def _killed(herd: Herd, workers: list[TendedWorker], asked: Sequence[Mapping[str, Any]], number: int) -> Kill:
    """Kill one of the workers when half of these jobs have begun, and start another in its place."""
    with ThreadPoolExecutor(NUM_WATCHED) as readers:
        job_ids = [herd.jobs.accept(fields, "killed") for fields in asked]
        gaps = readers.map(partial(_longest_gap_s, herd.server.url), job_ids[:NUM_WATCHED])
        wait_until(lambda: median(herd.jobs.numbers(job_ids, "n")) >= NUM_BEFORE, "half of the jobs run")
        died_s = perf_counter()
        workers[number].kill()
        workers[number] = herd.wait_until_ready(herd.start_worker())
        back_s = perf_counter() - died_s
        herd.jobs.results(job_ids)
        return Kill(job_ids, [seconds for seconds in gaps if seconds is not None], back_s)


def _longest_gap_s(url: str, job_id: str) -> float | None:
    """Seconds between two events of a job, as its reader sees them; None if it has begun only once."""
    with Client(url) as client:
        events = [(perf_counter(), event) for event in client.stream(job_id, timeout_s=PATIENCE_S)]
    if sum(isinstance(event, Started) for _, event in events) < 2:
        return None
    return max(later - earlier for (earlier, _), (later, _) in pairwise(events))


def _note(herd: Herd, job_ids: Sequence[str], calm: Undisturbed) -> str:
    """How many jobs have the ids of a run without kills."""
    results = {one.job: one for one in herd.jobs.results(job_ids)}
    said = []
    for what, is_resumed in (("resumed", True), ("not resumed", False)):
        some = [one for one in results.values() if (one.attempts > 1) == is_resumed]
        same = sum(one.ids == calm.ids(one.job, herd.jobs.accepted[one.job]) for one in some)
        said.append(f"{same} of {len(some)} {what}")
    return f"ids as without kills: {', '.join(said)}"
