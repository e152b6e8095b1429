"""The other types that files store, on this processor: ours, and how it stands to peers and the floor.

    python -m benchmarks.file_types [--presets NAME ...] [--rounds N] [--write]

Files of random weights, on which the engines of `benchmarks.speed` take turns.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.conditions import Processor
from benchmarks.harness import Benchmark, main
from benchmarks.report import Row, Table
from benchmarks.speed.cells import CELLS, Cell
from benchmarks.speed.contender import CONTENDERS, Contender
from benchmarks.speed.files import MEDIUM, ModelFile, RandomFile
from benchmarks.speed.machine import Ceilings
from benchmarks.speed.rounds import Outcome, measure_file
from benchmarks.speed.tables import best_speed, ratio
from benchmarks.speed.worker_memory import worker_bytes_over_file

TIMED: tuple[Cell, ...] = tuple(cell for cell in CELLS if cell.name != "32 mixed")


@dataclass(frozen=True)
class Plan:
    presets: tuple[str, ...] = (
        "Q5_K_M",
        "Q4_1",
        "Q5_0",
        "IQ4_NL",
        "IQ4_XS",
        "BF16",
        "F16",
        "Q2_K",
        "Q3_K_S",
        "MXFP4",
    )
    rounds: int = 3  # of all engines, on each file
    steps: int = 3  # that are decoded in each round
    threads: int = len(os.sched_getaffinity(0))

    @property
    def files(self) -> list[RandomFile]:
        return [RandomFile("1.1B", MEDIUM, preset) for preset in self.presets]


@dataclass(frozen=True)
class Found:
    """What came out for one file."""

    name: str
    file_bytes: int
    memory_in_files: float  # a worker's
    at_most: Mapping[str, float]  # tokens a second by cell, of the floor
    ours: Outcome
    peers: Sequence[Outcome]

    @property
    def speeds(self) -> Row:
        return {
            "file": self.name,
            "GB": self.file_bytes / 1e9,
            **self.ours.tokens_per_s,
            "a worker's memory, in files": self.memory_in_files,
            "peers": ", ".join(dict.fromkeys(_engine(peer) for peer in self.peers if peer.tokens_per_s)),
            "note": self.ours.note,
        }

    @property
    def standing(self) -> Row:
        own = self.ours.tokens_per_s
        times = {f"× {cell}": ratio(own[cell], best_speed(self.peers, cell)) for cell in self.at_most}
        shares = {f"% {cell}": ratio(own[cell], most, 100) for cell, most in self.at_most.items()}
        return {"file": self.name, **times, **shares}


def _engine(outcome: Outcome) -> str:
    """Without its mode."""
    return outcome.contender.partition(",")[0]


def measure_one(plan: Plan, file: ModelFile, contenders: Sequence[Contender], ceilings: Ceilings) -> Found:
    with TemporaryDirectory() as folder:
        path = file.write(Path(folder))
        ours, *peers = measure_file(path, contenders, plan.threads, plan.rounds, plan.steps, TIMED)
        floors = ceilings.floors(file, path)
        at_most = {cell.name: cell.floor_tokens_per_s(floors) for cell in TIMED}
        memory = worker_bytes_over_file(path, file.config, plan.threads)
        return Found(file.name, path.stat().st_size, memory, at_most, ours, peers)


def tables(
    plan: Plan, files: Sequence[ModelFile], contenders: Sequence[Contender], ceilings: Ceilings
) -> Iterator[Table]:
    console, found = Console(stderr=True, log_path=False), []
    for file in files:
        console.log(file.name)
        found.append(measure_one(plan, file, contenders, ceilings))
    yield Table([one.speeds for one in found], "Tokens a second")
    standing = "The same as times the best peer (×) and in percent of the floor (%)"
    yield Table([one.standing for one in found], standing)


def measure(plan: Plan) -> Iterator[Table]:
    contenders = [one for one in CONTENDERS if one.is_there and not one.reads_any_file_alike]
    return tables(plan, plan.files, contenders, Ceilings.measure(plan.threads))


BENCHMARK = Benchmark("file_types", __doc__, Plan(), measure, machine=Processor.here().name)

if __name__ == "__main__":
    main(BENCHMARK)
