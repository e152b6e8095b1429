"""How long streams wait, by the token budget of prefill: time to first token (TTFT) and between tokens (ITL).

    python -m benchmarks.latency [--write]

The engine alone, on random models, without a prefix cache. Two loads: a prompt of 4,000 tokens that joins
31 running streams, in rounds that go through all budgets; and jobs that come at random (Poisson), a few of
them with such a prompt, once. A step is the median of those that only decode. The tables show the round whose
ratio is the median. The largest budget takes every prompt whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

from benchmarks.conditions import conditions
from benchmarks.load import Bench, Load, Run
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import LONG_BUNDLED, RANDOM_59M, Shape
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

WHOLE = 8192  # no prompt is longer


@dataclass(frozen=True)
class Plan:
    """What to measure with one shape."""

    shape: Shape
    load: Load
    beside: tuple[int, ...] = (8, 16, 24, 32, 64, WHOLE)
    poisson: tuple[int, ...] = (16, 24, 64, WHOLE)
    rounds: int = 3


PLANS = (
    Plan(LONG_BUNDLED, Load()),
    Plan(
        RANDOM_59M,
        Load(num_jobs=64, jobs_per_s=0.8, jobs_per_long=16),
        beside=(16, 24, 32, 64, WHOLE),
        poisson=(16, 24, WHOLE),
    ),
)


def measure_plan(plan: Plan, folder: Path) -> dict[str, list[Run]]:
    """All rounds of both loads, budget by budget."""
    load = plan.load
    settings = WorkerSettings(
        model=plan.shape.file(folder),
        slots=load.slots,
        context_tokens=load.context_length,
        prefix_cache=False,  # a prompt is computed whole here, however often it has come before
        threads=1,
        dtype="float32",
    )
    model = LoadedModel.load(settings, "cpu")

    def bench(budget: int) -> Bench:
        return Bench(model, settings, load, budget)

    return {
        "beside": _rounds(plan.beside, plan.rounds, lambda budget: bench(budget).beside()),
        "poisson": _rounds(plan.poisson, 1, lambda budget: bench(budget).poisson()),
    }


def _rounds(budgets: tuple[int, ...], num_rounds: int, run: Callable[[int], Run]) -> list[Run]:
    rounds = [[run(budget) for budget in budgets] for _ in range(num_rounds)]
    return [
        {"prefill_tokens": budget, "rounds": list(runs)}
        for budget, runs in zip(budgets, zip(*rounds, strict=True), strict=True)
    ]


def measure(plans: tuple[Plan, ...]) -> Report:
    with TemporaryDirectory() as folder:
        runs = [
            {"model": plan.shape.name, "load": asdict(plan.load), **measure_plan(plan, Path(folder))}
            for plan in plans
        ]
    return {"benchmark": "latency", "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    for run in report["runs"]:
        for name, title in (
            ("beside", "a 4,000-token prompt beside 31 streams"),
            ("poisson", "Poisson load"),
        ):
            rows = [_row(budget) for budget in run[name]]
            yield Table(list(rows[0]), [list(row.values()) for row in rows], f"{run['model']}, {title}")


def _row(budget: Run) -> dict[str, str | float]:
    """The median round of a budget; of several rounds also between which ratios they lie."""
    rounds = budget["rounds"]
    ratios = [one["itl_p99_over_step"] for one in rounds]
    middle = next(one for one in rounds if one["itl_p99_over_step"] == median_low(ratios))
    shown = {name.replace("_", " "): _cell(value) for name, value in middle.items()}
    if len(rounds) > 1:
        shown["in all rounds"] = f"{min(ratios)}-{max(ratios)}"
    return {"prefill tokens": budget["prefill_tokens"], **shown}


def _cell(value: float | dict[str, float]) -> str | float:
    return " / ".join(f"{ms:,.0f}" for ms in value.values()) if isinstance(value, dict) else value


if __name__ == "__main__":
    run_command(lambda: measure(PLANS), tables, __doc__ or "")
