"""`python -m benchmarks.speed [--quick] [--write]`, see the package."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import benchmarks.speed
from benchmarks.conditions import Processor
from benchmarks.harness import Benchmark, main as run
from benchmarks.report import ROOT, Cell as Figure, Report, Row, Table
from benchmarks.speed.busy import beside_busy
from benchmarks.speed.cells import CELLS, MAX_TOKENS, Cell, long_cells
from benchmarks.speed.contender import CONTENDERS, OURS, Contender
from benchmarks.speed.files import FILES, ModelFile
from benchmarks.speed.machine import Ceilings
from benchmarks.speed.peers import PEERS
from benchmarks.speed.rounds import Outcome, measure_file
from benchmarks.speed.tables import file_table, first_token, readme_table
from benchmarks.speed.worker_memory import worker_bytes_over_file

QUICK_ROUNDS = 2


@dataclass(frozen=True)
class Plan:
    quick: bool = False  # one file, two rounds; no mixed rows, no worker's memory, no busy processes
    first: int = len(FILES)  # only so many files
    rounds: int = 5  # of all engines, on each file
    steps: int = 3  # that are decoded in each round
    contexts: tuple[int, ...] = (4_096, 16_384)  # of long prompts, which are computed once
    long_files: tuple[str, ...] = ("1.1B Q4_0", "SmolLM2-135M-Instruct Q4_1")  # whose long prompts are
    threads: int = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Bench:
    """All engines, and what they are measured on."""

    plan: Plan
    ceilings: Ceilings
    console: Console
    contenders: Sequence[Contender] = CONTENDERS

    def cells(self, file: ModelFile) -> tuple[list[Cell], list[Cell]]:
        """Those of each round, and those that are timed once."""
        plan, most = self.plan, file.config.context_length - MAX_TOKENS
        if plan.quick:
            return [cell for cell in CELLS if cell.name != "32 mixed"], []
        wanted = plan.contexts if file.name in plan.long_files else ()
        long = [long_cells(context) for context in wanted if context <= most]
        return [*CELLS, *(row for _, row in long)], [prompt for prompt, _ in long]

    def taking_part(self, files: Sequence[ModelFile], file: ModelFile) -> list[Contender]:
        """Who computes in one type reads one file of each shape."""
        is_first = next(one for one in files if one.config == file.config) is file
        return [one for one in self.contenders if one.is_there and (is_first or not one.reads_any_file_alike)]

    def measure(self, files: Sequence[ModelFile]) -> Iterator[Table]:
        of_files: list[Row] = []
        for file in files:
            self.console.log(f"{file.name}: writing the file")
            with TemporaryDirectory() as folder:
                path = file.write(Path(folder))
                contenders, (cells, once) = self.taking_part(files, file), self.cells(file)
                outcomes = self.outcomes(path, contenders, cells, once)
                floors = self.ceilings.floors(file, path)
                at_most = {cell.name: cell.floor_tokens_per_s(floors) for cell in (*cells, *once)}
                yield file_table(file.name, at_most, outcomes)
                if self.plan.quick:
                    continue
                self.console.log("a worker's memory")
                of_files.append(self.file_row(file, path, outcomes))
                if file is files[0]:  # it says it for all
                    self.console.log("steps beside busy processes")
                    busy = list(beside_busy(path, contenders, self.plan.threads))
        yield self.ceilings.table()
        if of_files:
            weights = "Weights: their part of the first token."
            yield Table(of_files, f"{weights} Memory: more than with the bundled model, but for the cache")
            yield Table(busy, "8 rows of the first file")

    def outcomes(
        self, path: Path, contenders: Sequence[Contender], cells: Sequence[Cell], once: Sequence[Cell]
    ) -> list[Outcome]:
        rounds = QUICK_ROUNDS if self.plan.quick else self.plan.rounds
        self.console.log(f"{rounds} rounds of {', '.join(one.name for one in contenders)}")
        return measure_file(path, contenders, self.plan.threads, rounds, self.plan.steps, cells, once)

    def file_row(self, file: ModelFile, path: Path, outcomes: Sequence[Outcome]) -> Row:
        ours = next(one for one in outcomes if one.contender == OURS.name)
        weights_s = ours.facts.get("weights_s", "-")
        row: dict[str, Figure] = {"file": file.name, "GB": path.stat().st_size / 1e9}
        row |= {"first token s": ours.start_s or "-", "weights s": weights_s}  # type: ignore[dict-item]
        memory = worker_bytes_over_file(path, file.config, self.plan.threads)
        return {**row, "a worker's memory for it, in files": memory}


def measure(plan: Plan) -> Iterator[Table]:
    console = Console(stderr=True, log_path=False)
    console.log("the machine's ceilings")
    bench = Bench(plan, Ceilings.measure(plan.threads), console)
    return bench.measure(FILES[: 1 if plan.quick else plan.first])


def picture(report: Report) -> Path:
    return ROOT / "docs" / f"{report.name}.svg"


def draw(report: Report) -> None:
    """Draw docs/speed-PROCESSOR.svg, where the environment with the peers is there."""
    python = PEERS / "bin" / "python"
    if python.exists():
        command = [python, Path(__file__).with_name("plot.py"), picture(report)]
        subprocess.run(command, input=json.dumps(asdict(report)), text=True, check=True)


def for_readme(report: Report) -> str:
    """A table of the ratios, the plot, and what a start takes."""
    drawn = picture(report)
    plot = [f"![Tokens a second of each engine on each file](docs/{drawn.name})"] * drawn.exists()
    table = report.with_conditions([readme_table(report)])
    return "\n\n".join([table, *plot, *([first_token(report)] if len(report.tables) > 2 else [])])


BENCHMARK = Benchmark(
    "speed",
    benchmarks.speed.__doc__,
    Plan(),
    measure,
    for_readme=for_readme,
    on_keep=draw,
    machine=Processor.here().name,
)

if __name__ == "__main__":
    run(BENCHMARK)
