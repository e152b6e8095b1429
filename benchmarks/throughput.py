"""Tokens a second of the bundled model: engine alone, through the queue, and transformers beside it.

    python -m benchmarks.throughput [--write]

Each run keeps its batch full: four jobs for each row, 96 tokens each, greedy, with no end of sequence.
The floor is the weights' bytes (float32 in memory) read once a step at the measured bandwidth.
"""

import argparse
import json
from math import prod
from time import perf_counter

from benchmarks.conditions import conditions, read_bandwidth
from benchmarks.measured import README, RESULTS, Report, Table, for_readers, write_section
from benchmarks.peer import generate, load_peer
from benchmarks.shapes import PROMPTS
from benchmarks.warm_worker import warm_worker
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_model import GGUFModel, expected_shapes
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings

RESULT = RESULTS / "throughput.json"

ROWS = (1, 8, 32)
JOBS_PER_ROW = 4
MAX_TOKENS = 96
SAMPLING = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True)


def engine_alone(num_rows: int) -> float:
    """Tokens a second of an engine in this process, without a queue."""
    settings = WorkerSettings(slots=num_rows, dtype="float32")
    model = LoadedModel.load(settings, "cpu")
    num_tokens = 0

    def count(outputs: list[StepOutput]) -> None:
        nonlocal num_tokens
        num_tokens += sum(len(output.ids) for output in outputs)

    engine = model.engine(settings, count)

    def run(num_jobs: int) -> float:
        """Seconds until all jobs have ended."""
        for index in range(num_jobs):
            job = GenerationJob(prompt=PROMPTS[index % len(PROMPTS)], sampling=SAMPLING)
            engine.submit(model.sequences(f"job-{index}", job, now_ms=0)[0])
        started = perf_counter()
        while engine.has_work:
            engine.step()
        return perf_counter() - started

    run(num_rows)
    num_tokens = 0
    seconds = run(JOBS_PER_ROW * num_rows)
    return num_tokens / seconds


def through_the_queue(num_rows: int) -> float:
    """Tokens a second of a warm worker process, from the first submission to the last end."""
    with warm_worker(num_rows, SAMPLING) as queue:
        return queue.tokens_per_s(JOBS_PER_ROW * num_rows, SAMPLING)


def peer(file: GGUFModel, num_rows: int) -> float:
    """Tokens a second of transformers, one static batch of `num_rows` at a time."""
    model = load_peer(file)
    tokenizer = LoadedModel.load(WorkerSettings(slots=1, dtype="float32"), "cpu").tokenizer
    prompts = [tokenizer.encode(PROMPTS[n % len(PROMPTS)]) for n in range(num_rows)]
    generate(model, prompts, 4)
    started = perf_counter()
    num_tokens = sum(generate(model, prompts, MAX_TOKENS) for _ in range(JOBS_PER_ROW))
    return num_tokens / (perf_counter() - started)


def _num_weights_read(config: LlamaConfig) -> int:
    """Numbers that every step reads: all weights but the embedding, of which it reads a row."""
    unread = ("token_embd.weight", "rope_freqs.weight")
    return sum(prod(shape) for name, shape in expected_shapes(config).items() if name not in unread)


def measure() -> Report:
    bandwidth = read_bandwidth()
    with GGUFModel.open(BUNDLED_MODEL) as file:
        step_bytes = 4 * _num_weights_read(file.config)
        runs = [
            {
                "rows": num_rows,
                "engine_tokens_per_s": round(engine_alone(num_rows), 1),
                "queue_tokens_per_s": round(through_the_queue(num_rows), 1),
                "transformers_tokens_per_s": round(peer(file, num_rows), 1),
                "floor_tokens_per_s": round(num_rows * bandwidth / step_bytes, 1),
            }
            for num_rows in ROWS
        ]
    return {
        "benchmark": "throughput",
        "model": BUNDLED_MODEL.name,
        "max_tokens": MAX_TOKENS,
        "jobs_per_row": JOBS_PER_ROW,
        "read_bandwidth_bytes_per_s": round(bandwidth),
        "conditions": conditions(),
        "runs": runs,
    }


def for_readme(report: Report) -> str:
    """The runs, a row each."""
    head = [name.removesuffix("_tokens_per_s") for name in report["runs"][0]]
    rows = [list(run.values()) for run in report["runs"]]
    title = f"Tokens a second of {report['model']}, {report['max_tokens']} tokens a job"
    return for_readers(report, [Table(head, rows, title)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the report and the README's table")
    is_kept = parser.parse_args().write
    report = measure()
    print(for_readme(report))
    if is_kept:
        RESULT.write_text(json.dumps(report, indent=2) + "\n")
        write_section(README, "throughput", for_readme(report))


if __name__ == "__main__":
    main()
