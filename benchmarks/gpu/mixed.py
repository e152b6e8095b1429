"""A step of rows that decode beside tokens of prompts, by the runner itself: its time and the host's part."""

from collections import deque
from collections.abc import Iterator, Sequence as Rows
from dataclasses import replace
from time import perf_counter

from benchmarks.floors import Floors, Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.ceilings import wait_for
from benchmarks.gpu.engine_runs import EngineRun
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.scale import Load
from benchmarks.gpu.trace import start
from llama_herd.worker.engine.runner import Read, Row, Runner

#: Steps that are timed together, each launched before the one before it is read.
NUM_STEPS = 8


def mixed(bench: Bench, format: Format) -> Iterator[Measurement]:
    """Prompts of so many tokens, none of them complete, beside rows of so many keys.

    Nothing is computed before: the cache holds random numbers.
    """
    scale, length = bench.scale, bench.scale.saturation.num_in
    num_prompts = -(-max(scale.mixed_tokens) // length)
    # Of each prompt the last token is one more: rows decode it, and prompts stay incomplete without it.
    load = replace(scale.mixed, num_in=scale.mixed.num_in + 1, num_rows=scale.mixed.num_rows + num_prompts)
    run = EngineRun(bench, format, bench.fitting(load, format))
    load = replace(scale.mixed, num_rows=run.largest.num_rows - num_prompts)
    run.model.cache.storage.normal_()
    start(run.engine, replace(load, num_in=load.num_in + 1, num_requests=load.num_rows), seed=1)
    start(run.engine, Load(num_prompts, length + 1, 1, num_prompts), seed=2)
    run.engine.engine.admit()
    running = run.engine.engine.scheduler.running
    if len(running) < run.largest.num_rows:
        raise RuntimeError(f"{len(running)} of {run.largest.num_rows} sequences have room")
    decoding, reading = running[: load.num_rows], running[load.num_rows :]
    rows = [Row(one, 1, load.num_in, is_complete=True, num_scores=0) for one in decoding]
    case, launches_ms = f"{load.num_rows} rows of {load.num_in} keys, by prompt tokens beside them", []
    for num_tokens in bench.scale.mixed_tokens:
        lengths = [min(length, num_tokens - first) for first in range(0, num_tokens, length)]
        prompts = [
            Row(one, num, 0, is_complete=False, num_scores=0)
            for one, num in zip(reading, lengths, strict=False)
        ]
        timed = [_timed_ms(run, [*rows, *prompts]) for _ in range(1 + bench.num_runs)][1:]
        floor = run.floor_ms(lambda floors, lengths=lengths: floor_s(floors, load, lengths))  # type: ignore[misc]
        launches_ms += [launch_ms for _, launch_ms in timed]
        yield run.measurement("mixed", case, "ms", [step_ms for step_ms, _ in timed], floor, str(num_tokens))
    yield run.measurement("mixed", case, "ms", launches_ms, None, "the host's launch")


def floor_s(floors: Floors, load: Load, lengths: Rows[int]) -> float:
    """Weights are read once for rows and prompts, and multiplied by each of their tokens."""
    flop = 2 * load.num_rows * (floors.num_linear + floors.num_output) + sum(
        map(floors.prefill_flop, lengths)
    )
    products_s = max(floors.weight_bytes / floors.bytes_per_s, flop / floors.flop_per_s)
    return products_s + load.num_rows * (load.num_in + 1) * floors.kv_bytes / floors.bytes_per_s


def _timed_ms(run: EngineRun, rows: Rows[Row]) -> tuple[float, float]:
    """Milliseconds of a step, and of its launch."""
    runner, device = run.engine.engine.runner, run.bench.device
    for row in rows:
        runner.begin(row.sequence)  # its slot is as it was before the last steps
    _launched(runner, rows, 2)
    wait_for(device)
    started_s = perf_counter()
    host_s = _launched(runner, rows, NUM_STEPS)
    wait_for(device)
    return 1e3 * (perf_counter() - started_s) / NUM_STEPS, 1e3 * host_s / NUM_STEPS


def _launched(runner: Runner, rows: Rows[Row], num_steps: int) -> float:
    """Launch steps one behind the other, as the engine does; seconds that the launches took."""
    flying, host_s = deque[Read](), 0.0
    for _ in range(num_steps):
        began_s = perf_counter()
        flying.append(runner.launch(rows))
        host_s += perf_counter() - began_s
        if len(flying) > 1:
            flying.popleft()()
    for read in flying:
        read()
    return host_s
