"""A peer: transformers' own Llama of the same shape, with weights of its own, in three ways."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_runs import prompts_case, saturation_case, step_case
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.queue_runs import FORMAT
from benchmarks.gpu.scale import Load
from benchmarks.gpu.trace import random_prompts

STATIC = "transformers generate, static cache"
FORWARD = "transformers forward"
CONTINUOUS = "transformers continuous batching"


class StepClock(StoppingCriteria):  # type: ignore[misc]
    """Stops nothing, and notes when each step ended: `generate` waits for the device after each."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.times.append(perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def transformers(bench: Bench) -> Iterator[Measurement]:
    """W5 by one forward, W2 and W3 by continuous batching as it comes, W1 by a static cache, compiled."""
    peer, scale = _load(bench), bench.scale
    yield _forward(bench, peer)
    gaps = []
    for _ in range(2):
        first = _continuous(bench, peer, scale.batch)[0]
        gaps.append(1000 * _median_gap(first.timestamps))
    yield Measurement("W2", f"BF16, {step_case(scale.batch)}", CONTINUOUS, "ms", tuple(gaps[1:]))
    many = replace(scale.saturation, num_requests=scale.num_peer_requests)
    outputs = _continuous(bench, peer, many)
    started = min(output.created_time for output in outputs)
    wall_s = max(output.timestamps[-1] for output in outputs) - started
    rate = sum(len(output.generated_tokens) for output in outputs) / wall_s
    case = saturation_case(bench.saturating(FORMAT)["W3"])
    note = f"{many.num_requests} requests only"
    yield Measurement("W3", f"{FORMAT.name}, {case}", CONTINUOUS, "tok/s", (rate,), note=note)
    bench.free_memory()
    yield _static_steps(bench, peer, "W1", scale.single)


def _load(bench: Bench) -> Any:
    """A LlamaForCausalLM of random weights, made where it is to run."""
    bench.free_memory()
    shape = bench.scale.config
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        intermediate_size=shape.ffn_size,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.context_length,
    )
    with bench.device:
        dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


@torch.no_grad()
def _static_steps(bench: Bench, peer: Any, workload: str, load: Load) -> Measurement:
    is_compiled = bench.device.type == "cuda"
    runs = []
    for seed in range(1 + bench.num_runs):
        ids = torch.tensor(random_prompts(load, bench.scale.config.vocab_size, seed), device=bench.device)
        clock = StepClock()
        peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=_greedy(load, cache_implementation="static", disable_compile=not is_compiled),
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        runs.append(1000 * _median_gap(clock.times[1:]))
    note = (
        "decode compiled" if is_compiled else "not compiled: on a CPU that takes longer than the dry run may"
    )
    return Measurement(workload, f"BF16, {step_case(load)}", STATIC, "ms", tuple(runs[1:]), note=note)


@torch.no_grad()
def _forward(bench: Bench, peer: Any) -> Measurement:
    load = bench.scale.prompts
    runs = []
    for seed in range(1 + bench.num_runs):
        ids = torch.tensor(random_prompts(load, bench.scale.config.vocab_size, seed), device=bench.device)
        started = perf_counter()
        peer(ids, logits_to_keep=1).logits.argmax(dim=-1).tolist()
        runs.append(1000 * (perf_counter() - started))
    return Measurement("W5", f"BF16, {prompts_case(load)}", FORWARD, "ms", tuple(runs[1:]))


def _continuous(bench: Bench, peer: Any, load: Load) -> list[Any]:
    """The finished requests, each with the times of its tokens."""
    # On a CPU it would reserve most of the machine's memory.
    room = {"num_blocks": 2 * load.num_rows, "max_batch_tokens": 256} if bench.device.type == "cpu" else {}
    prompts = random_prompts(load, bench.scale.config.vocab_size, seed=0)
    outputs = peer.generate_batch(
        [list(prompt) for prompt in prompts],
        generation_config=_greedy(load),
        continuous_batching_config=ContinuousBatchingConfig(allow_block_sharing=False, **room),
        record_timestamps=True,
    )
    finished = list(outputs.values())
    if len(finished) < load.num_requests or any(len(o.generated_tokens) != load.num_out for o in finished):
        raise RuntimeError(f"{CONTINUOUS} did not finish {load.label}")
    return finished


def _median_gap(times: list[float]) -> float:
    return median(later - earlier for earlier, later in pairwise(times))


def _greedy(load: Load, **options: Any) -> GenerationConfig:
    """No end of sequence: -1 is no token."""
    return GenerationConfig(
        max_new_tokens=load.num_out, do_sample=False, eos_token_id=-1, pad_token_id=0, **options
    )
