"""The plan holds what the operators of a draw take at most, whatever vocabulary and context."""

import pytest
import torch

from benchmarks.shapes import random_config
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sampling.row import Penalties, SamplingRow
from llama_herd.worker.engine.sampling.rules import apply_in_slots
from llama_herd.worker.engine.sampling.sampler import drawn, sample
from llama_herd.worker.engine.slots import Slots
from llama_herd.worker.engine.step_graphs import EVERYTHING
from llama_herd.worker.loading.memory_plan import StepMemory
from tests.peak_memory import PeakMemory

NUM_ROWS = 2
ALL_RULES = SamplingParams(
    temperature=1.5, top_p=0.99, top_n_sigma=9, repetition_penalty=1.2, frequency_penalty=0.1, logprobs=True
)
SIZES = [(num_tokens, length) for num_tokens in (512, 32_000) for length in (128, 4_096, 60_000)]


def planned_bytes(num_tokens: int, length: int, *, consecutive: bool) -> int:
    """For logits that are there already."""
    config = random_config(
        hidden_size=64, num_layers=1, num_heads=4, ffn_size=64, vocab_size=num_tokens, context_length=length
    )
    step = StepMemory(config, 2, consecutive, NUM_ROWS, 1, 1, 1)
    return NUM_ROWS * step.drawing_bytes(length)


@pytest.mark.long
@pytest.mark.parametrize(("num_tokens", "length"), SIZES)
def test_a_draw_by_slots_stays_within_its_plan(num_tokens: int, length: int) -> None:
    slots = Slots(NUM_ROWS, length, trash_page=1, device=torch.device("cpu"))
    rows, logits = slots.rows(torch.arange(NUM_ROWS)), torch.randn(NUM_ROWS, num_tokens)
    with torch.inference_mode(), PeakMemory() as memory:
        drawn(apply_in_slots(logits, rows), rows, EVERYTHING)
    planned = planned_bytes(num_tokens, length, consecutive=False)
    assert 0.6 * planned < memory.peak_bytes <= planned


@pytest.mark.long
@pytest.mark.parametrize(("num_tokens", "length"), SIZES)
def test_a_draw_on_a_cpu_stays_within_its_plan(num_tokens: int, length: int) -> None:
    ids = [number % num_tokens for number in range(length)]
    rows = [
        SamplingRow(ALL_RULES, seed, penalties=Penalties.if_any(ALL_RULES, ids)) for seed in range(NUM_ROWS)
    ]
    logits = torch.randn(NUM_ROWS, num_tokens)
    with torch.inference_mode(), PeakMemory() as memory:
        sample(logits, rows)
    assert memory.peak_bytes <= planned_bytes(num_tokens, length, consecutive=True)
