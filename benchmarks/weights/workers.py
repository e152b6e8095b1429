"""Tokens a second of a worker at its defaults, and at the settings of before."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from benchmarks.measured import Report, Table
from benchmarks.shapes import PLAIN_IDS
from benchmarks.warm_worker import Queue, warm_worker
from benchmarks.weights.files import random_file
from benchmarks.weights.settings import BEFORE, DEFAULTS, Setting
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings

#: Of a type that opened before, too.
MIX = "Q8_0"


@dataclass(frozen=True)
class Load:
    """Jobs that are sent together. What counts is prompt tokens, or the tokens that come out."""

    name: str
    num_jobs: int
    prompt_tokens: int
    max_tokens: int

    @property
    def num_counted(self) -> int:
        return self.num_jobs * max(self.prompt_tokens, self.max_tokens)

    def tokens_per_s(self, queue: Queue) -> float:
        """From the first submission to the last end. No prompt begins as another one does."""
        ids = Random(self.name)
        sampling = SamplingParams(max_tokens=self.max_tokens, ignore_eos=True)
        prompts = [ids.choices(PLAIN_IDS, k=self.prompt_tokens) for _ in range(self.num_jobs)]
        started_s = perf_counter()
        jobs = [queue.client.submit(prompt_ids=prompt, sampling=sampling) for prompt in prompts]
        for job_id in jobs:
            queue.client.result(job_id)
        return self.num_counted / (perf_counter() - started_s)


LOADS = (
    Load("prompts of 512", 3, 512, 1),
    *(Load(f"{jobs} at a time", jobs, 8, 24) for jobs in (1, 8, 32)),
)


def measure(folder: Path) -> Report:
    path = random_file(folder, MIX)
    return {"file": path.stem, "speeds": [speed(path, setting) for setting in (DEFAULTS, BEFORE)]}


def speed(path: Path, setting: Setting, loads: tuple[Load, ...] = LOADS) -> dict[str, Any]:
    """Of a worker process that is warm."""
    own = {"model": path, "served_model_name": BUNDLED_MODEL.stem}  # that name is what clients take it for
    fields = {"dtype": "auto", **setting.fields, **own}
    num_rows = WorkerSettings.read(**fields).slots
    with warm_worker(num_rows, SamplingParams(max_tokens=2), **fields) as queue:
        found = {load.name: round(load.tokens_per_s(queue), 2) for load in loads}
    return {"settings": setting.name, **found}


def tables(report: Report) -> Iterator[Table]:
    names = [name for name in report["speeds"][0] if name != "settings"]
    yield Table(
        ["settings", *names],
        [[one["settings"], *(one[name] for name in names)] for one in report["speeds"]],
        f"A worker with the {report['file']} file, tokens a second",
    )
