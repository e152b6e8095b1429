"""What subscribers cost a worker: tokens a second beside 50 that listen to every job.

    python -m benchmarks.subscribers [--write]

The bundled model in one worker process, several rounds. What each kind of subscriber does, says
llama_herd.chaos.crowd.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.harness import Benchmark, in_turns, main
from benchmarks.jobs import greedy
from benchmarks.report import Table
from benchmarks.warm_worker import warm_worker
from llama_herd.chaos.crowd import CrowdTurn, crowd_of, read_a_little, read_nothing, replace_oldest
from llama_herd.tasks.ledger.ledger import Ledger


@dataclass(frozen=True)
class Plan:
    rows: int = 16
    num_jobs: int = 64
    max_tokens: int = 200
    rounds: int = 7
    subscribers: int = 50


def measure(plan: Plan) -> Iterator[Table]:
    sampling = greedy(plan.max_tokens)
    with warm_worker(plan.rows, sampling) as queue:

        def beside(num: int, turn: CrowdTurn) -> float:
            with crowd_of(num, queue.url, Ledger().channel("*"), turn):
                return queue.tokens_per_s(plan.num_jobs, sampling)

        kinds = {"stuck": read_nothing, "slow": read_a_little, "flapping": replace_oldest}
        ways = {
            f"{plan.subscribers} {kind}": partial(beside, plan.subscribers, kinds[kind]) for kind in kinds
        }
        found = in_turns({"none": partial(beside, 0, read_nothing), **ways}, plan.rounds)
    alone = median(found["none"])
    yield Table(
        [
            {
                "subscribers": name,
                "tokens/s": speeds,
                "share": median(speeds) / alone,
                "slowest": min(speeds),
                "fastest": max(speeds),
            }
            for name, speeds in found.items()
        ]
    )


BENCHMARK = Benchmark("subscribers", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
