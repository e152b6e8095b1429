"""On a card: steps that overlap, captured or not, give what steps one by one give."""

from pathlib import Path
from typing import Any

import pytest
import torch

from llama_herd.worker.engine.graph_device import CudaDevice
from llama_herd.worker.engine.slot_runner import SlotRunner
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import PREFIX, Collector, finish, run, sequence

pytestmark = pytest.mark.gpu

CARD = "cuda:0"
PENALTIES = {"repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.3}
MODES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 1.2, "min_p": 0.01, "top_k": 60, "top_p": 0.9, "seed": 2},
    {"temperature": 0.8, "seed": 3, **PENALTIES, "repeat_last_n": 9},
    {"logit_bias": {40: 4.0, 41: 4.0}, **PENALTIES},
    {"logprobs": True, "top_logprobs": 3},
]


def settings_of(path: Path, graphs: str) -> WorkerSettings:
    return WorkerSettings.model_validate(
        {"model": path, "dtype": "float32", "slots": 9, "kv_cache_tokens": 8192, "graphs": graphs}
    )


def ids(path: Path, graphs: str) -> dict[str, list[int]]:
    settings = settings_of(path, graphs)
    model = LoadedModel.load(settings, CARD)
    jobs = [
        sequence(model, f"job-{n}", PREFIX[: 1 + 20 * n], max_tokens=40, **MODES[n % len(MODES)])
        for n in range(24)
    ]
    sink = run(model, settings, jobs)
    assert model.steps_note.startswith("one by one" if graphs == "off" else "overlapping"), model.steps_note
    return sink.ids


def test_steps_that_overlap_draw_what_steps_one_by_one_draw(tiny_file: Path) -> None:
    expected = ids(tiny_file, "off")
    assert ids(tiny_file, "uncaptured") == expected
    assert ids(tiny_file, "auto") == expected


def test_a_step_waits_for_nothing_but_the_one_before(tiny_file: Path) -> None:
    """CUDA itself complains about each operator that makes the host wait."""
    settings = settings_of(tiny_file, "auto")
    model = LoadedModel.load(settings, CARD)
    engine = model.engine(settings, Collector())
    engine.submit(*[sequence(model, f"job-{n}", max_tokens=60, ignore_eos=True) for n in range(9)])
    while any(len(one.ids) < 5 for one in engine.scheduler.running) or not engine.scheduler.running:
        engine.step()
    reserved = torch.cuda.memory_reserved()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_reserved() == reserved
    finish(engine)


def test_what_cannot_be_captured_leaves_the_card_well(tiny_file: Path) -> None:
    settings = settings_of(tiny_file, "off")
    model = LoadedModel.load(settings, CARD)
    runner = SlotRunner(model.llama, model.cache, CudaDevice(), settings.slots)
    logits_of = type(model.llama).logits
    with pytest.MonkeyPatch.context() as patch:

        def reads_a_number(*given: Any) -> torch.Tensor:
            logits = logits_of(*given)
            logits.sum().item()
            return logits

        patch.setattr(type(model.llama), "logits", reads_a_number)
        assert "captur" in runner.graphs.check()
    assert torch.ones(3, device=CARD).sum().item() == 3
    large = torch.empty(1 << 28, dtype=torch.uint8, device=CARD)
    reserved = torch.cuda.memory_reserved()
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (1 << 28)
