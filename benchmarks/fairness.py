"""What a flood of one tenant costs another: how long a burst of jobs waits behind it.

    python -m benchmarks.fairness [--write]

The bundled model in one worker process for two tenants, several rounds. Its fair share is what the burst
waits alone in a worker with half the rows. Behind a flood it also waits for rows: what runs is not put back,
so it has its half only once so many jobs of the flood have ended.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, astuple, dataclass
from statistics import median, quantiles

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import PROMPTS
from benchmarks.warm_worker import Queue, warm_worker
from llama_herd.chaos.patience import wait_until
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.sampling import SamplingParams

FLOODING = "flooding"


@dataclass(frozen=True)
class Plan:
    """`floods`: tokens of each job of a flood; 0 for none."""

    rows: int = 16
    num_jobs: int = 128
    max_tokens: int = 64
    num_flood: int = 1000
    floods: Sequence[int] = (0, 64, 400)
    rounds: int = 3


@dataclass(frozen=True)
class Wait:
    """How long the jobs of a burst waited until they began."""

    first_s: float
    p50_s: float
    p99_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Wait":
        return cls(min(seconds), median(seconds), quantiles(seconds, n=100, method="inclusive")[98])

    @classmethod
    def typical(cls, rounds: Sequence["Wait"]) -> "Wait":
        return cls(*map(median, zip(*map(astuple, rounds), strict=True)))


def sampling_of(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)


def submit(client: Client, num_jobs: int, max_tokens: int) -> list[str]:
    sampling = sampling_of(max_tokens)
    return [client.submit(prompt=PROMPTS[n % len(PROMPTS)], sampling=sampling) for n in range(num_jobs)]


@contextmanager
def flood(queue: Queue, num_jobs: int, max_tokens: int) -> Iterator[None]:
    """Jobs of another tenant that fill the worker and its queue as long as this lasts."""
    with Client(queue.url, tenant=FLOODING) as client:
        job_ids = submit(client, num_jobs, max_tokens)
        wait_until(lambda: client.status().running, "the flood runs")
        yield
        for job_id in job_ids:
            client.cancel(job_id)
        # Messages of jobs that have ended have not been taken yet.
        wait_until(lambda: not client.status().depth, "the flood is over")


def burst(queue: Queue, plan: Plan) -> Wait:
    results = [queue.client.result(job) for job in submit(queue.client, plan.num_jobs, plan.max_tokens)]
    return Wait.of([result.timings.queue_s or 0.0 for result in results if result.timings])


def measure(plan: Plan) -> Report:
    warm = sampling_of(plan.max_tokens)
    with warm_worker(plan.rows // 2, warm) as queue:
        share = Wait.typical([burst(queue, plan) for _ in range(plan.rounds)])
    beside: dict[int, list[Wait]] = {flood_tokens: [] for flood_tokens in plan.floods}
    with warm_worker(plan.rows, warm, tenants=f"default,{FLOODING}") as queue:
        for _ in range(plan.rounds):
            for flood_tokens, waits in beside.items():
                with flood(queue, plan.num_flood, flood_tokens) if flood_tokens else nullcontext():
                    waits.append(burst(queue, plan))
    runs = [run("alone, half the rows: its share", share, share)]
    runs += [run(name_of(plan, tokens), Wait.typical(waits), share) for tokens, waits in beside.items()]
    return {"benchmark": "fairness", "plan": asdict(plan), "conditions": conditions(), "runs": runs}


def name_of(plan: Plan, flood_tokens: int) -> str:
    return f"behind {plan.num_flood:,} jobs of {flood_tokens} tokens" if flood_tokens else "alone, all rows"


def run(name: str, wait: Wait, share: Wait) -> dict[str, str | float]:
    return {
        "the burst": name,
        "first begins, s": round(wait.first_s, 3),
        "wait p50 s": round(wait.p50_s, 2),
        "wait p99 s": round(wait.p99_s, 2),
        "p99 over its share's": round(wait.p99_s / share.p99_s, 2),
    }


def tables(report: Report) -> Iterator[Table]:
    plan, runs = report["plan"], report["runs"]
    title = f"{plan['num_jobs']} jobs of {plan['max_tokens']} tokens, {plan['rows']} rows"
    yield Table(list(runs[0]), [list(one.values()) for one in runs], title)


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
