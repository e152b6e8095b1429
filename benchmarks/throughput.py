"""Tokens a second of the bundled model: engine alone, through the queue, and transformers beside it.

    python -m benchmarks.throughput [--write]

Each run keeps its batch full: four jobs for each row, 96 tokens each, greedy, with no end of sequence.
The floor reads the file's weights once a step at the measured bandwidth.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.conditions import read_bandwidth
from benchmarks.harness import Benchmark, main, timed_s
from benchmarks.jobs import greedy, prompts
from benchmarks.peer import generate, load_peer
from benchmarks.report import Table
from benchmarks.speed.files import weight_bytes
from benchmarks.timed_engine import TimedEngine
from benchmarks.warm_worker import warm_worker
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.ops.settings import BUNDLED_MODEL


@dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (1, 8, 32)
    jobs_per_row: int = 4
    max_tokens: int = 96


def engine_alone(num_rows: int, plan: Plan) -> float:
    """Tokens a second of an engine in this process, without a queue."""
    engine = TimedEngine.load(slots=num_rows)

    def run(num_jobs: int) -> float:
        trace = engine.begin()
        for number, prompt in enumerate(prompts(num_jobs)):
            engine.submit(f"job-{number}", prompt, greedy(plan.max_tokens))
        engine.run()
        return trace.tokens_per_s

    run(num_rows)
    return run(plan.jobs_per_row * num_rows)


def through_the_queue(num_rows: int, plan: Plan) -> float:
    """Tokens a second of a warm worker process, from the first submission to the last end."""
    sampling = greedy(plan.max_tokens)
    with warm_worker(num_rows, sampling) as queue:
        return queue.tokens_per_s(plan.jobs_per_row * num_rows, sampling)


def peer(file: GGUFModel, num_rows: int, plan: Plan) -> float:
    """Tokens a second of transformers, one static batch of `num_rows` at a time."""
    model, tokenizer = load_peer(file), file.read_tokenizer()
    asked = [tokenizer.encode(prompt) for prompt in prompts(num_rows)]
    generate(model, asked, 4)
    seconds = timed_s(lambda: [generate(model, asked, plan.max_tokens) for _ in range(plan.jobs_per_row)])
    return plan.jobs_per_row * num_rows * plan.max_tokens / seconds


def measure(plan: Plan) -> Iterator[Table]:
    bandwidth = read_bandwidth()
    with GGUFModel.open(BUNDLED_MODEL) as file:
        rows = [
            {
                "rows": num_rows,
                "engine": engine_alone(num_rows, plan),
                "queue": through_the_queue(num_rows, plan),
                "transformers": peer(file, num_rows, plan),
                "floor": num_rows * bandwidth / weight_bytes(BUNDLED_MODEL),
            }
            for num_rows in plan.rows
        ]
    yield Table(rows, f"Tokens a second of {BUNDLED_MODEL.name}, {plan.max_tokens} tokens a job")


BENCHMARK = Benchmark("throughput", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
