"""What subscribers cost a worker: tokens a second beside 50 that listen to every job.

    python -m benchmarks.subscribers [--write]

The bundled model in one worker process, several rounds. What each kind of subscriber does, says
llama_herd.chaos.crowd.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.warm_worker import warm_worker
from llama_herd.chaos.crowd import CrowdTurn, crowd_of, read_a_little, read_nothing, replace_oldest
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.sampling import SamplingParams


@dataclass(frozen=True)
class Plan:
    rows: int = 16
    num_jobs: int = 64
    max_tokens: int = 200
    rounds: int = 7
    subscribers: int = 50


ALONE = "none"
TURNS: dict[str, CrowdTurn] = {
    ALONE: read_nothing,
    "stuck": read_nothing,
    "slow": read_a_little,
    "flapping": replace_oldest,
}


def measure(plan: Plan) -> Report:
    sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=0, ignore_eos=True)
    speeds: dict[str, list[float]] = {name: [] for name in TURNS}
    with warm_worker(plan.rows, sampling) as queue:
        for _ in range(plan.rounds):
            for name, of_one in speeds.items():
                num = 0 if name == ALONE else plan.subscribers
                with crowd_of(num, queue.url, Ledger().channel("*"), TURNS[name]):
                    of_one.append(queue.tokens_per_s(plan.num_jobs, sampling))
    alone = median(speeds[ALONE])
    runs = [
        {
            "subscribers": name if name == ALONE else f"{plan.subscribers} {name}",
            "tokens/s": round(median(of_one), 1),
            "share": round(median(of_one) / alone, 3),
            "slowest": round(min(of_one), 1),
            "fastest": round(max(of_one), 1),
        }
        for name, of_one in speeds.items()
    ]
    return {"benchmark": "subscribers", "plan": asdict(plan), "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    runs = report["runs"]
    yield Table(list(runs[0]), [list(run.values()) for run in runs])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
