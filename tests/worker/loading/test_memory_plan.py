"""What a worker is going to allocate, known before it does."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from llama_herd.errors import SettingsError
from llama_herd.model.files.open_model import open_model
from llama_herd.model.kernels.unloaded import UnloadedKernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import BlockSegment, DenseSegment, Linear, NativeSegment, Segment
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.worker.loading import memory_plan
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.machine import free_bytes
from llama_herd.worker.loading.memory_plan import FORMS, MemoryPlan
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import WIDE, write_tiny_gguf


def plan(settings: WorkerSettings) -> MemoryPlan:
    with open_model(settings.model) as file:
        return MemoryPlan.for_model(settings, file, "cpu")


def weights(llama: Llama) -> dict[int, Tensor]:
    """Every tensor of a model, once."""
    found = [_stored(llama.embedding), llama.norm.weight, *_matrices(llama.output)]
    for block in llama.blocks:
        found += [block.attention_norm.weight, block.mlp_norm.weight]
        for linear in (*vars(block.attention).values(), *vars(block.mlp).values()):
            found += _matrices(linear)
    return {tensor.data_ptr(): tensor for tensor in found}


def _matrices(linear: object) -> list[Tensor]:
    return [_stored(segment) for segment in linear.segments] if isinstance(linear, Linear) else []


def _stored(segment: Segment) -> Tensor:
    if isinstance(segment, NativeSegment):  # this machine has kernels
        return segment.tiles
    assert isinstance(segment, DenseSegment | BlockSegment)
    return segment.matrix if isinstance(segment, DenseSegment) else segment.blocks


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("type", "form"), [("F32", "auto"), ("Q4_K Q6_K F16", "dense"), ("Q4_K Q6_K F16", "quantized")]
)
def test_a_plan_is_what_is_allocated(tmp_path: Path, tied: bool, dtype: str, type: str, form: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tied=tied, type=type, **WIDE)
    settings = WorkerSettings.read(model=path, slots=3, dtype=dtype, threads=1, weights=form)
    planned, model = plan(settings), LoadedModel.load(settings, "cpu")
    assert planned.weight_bytes == sum(tensor.nbytes for tensor in weights(model.llama).values())
    assert planned.kv_cache_bytes == model.cache.storage.nbytes
    assert planned.kv_cache_tokens == 3 * 512
    assert planned.max_length == model.plan.max_length == 512


#: A plan may be above what a process takes by what a worker takes besides: connections, threads, its helper;
#: and by what does not come at the same time, such as activations and logits.
TOLERANCE_BYTES = 200_000_000


#: What takes most differs: with their settings, and the shape of the model where it is not the bundled one.
LARGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bundled": ({"slots": 128, "prefill_tokens": 64}, {}),  # 268 MB of KV, 57 MB a step
    "bfloat16": ({"slots": 128, "prefill_tokens": 64, "dtype": "bfloat16"}, {}),
    "long": (  # 134 MB of attention, 34 of tables
        {"slots": 4, "prefill_tokens": 16, "kv_cache_tokens": 32_768},
        {"hidden_size": 256, "num_kv_heads": 4, "ffn_size": 512, "context_length": 32_768},
    ),
    "wide": (  # 135 MB of activations
        {"slots": 64, "prefill_tokens": 64, "kv_cache_tokens": 8_192},
        {"hidden_size": 1024, "ffn_size": 2816, "context_length": 2048},
    ),
}


@pytest.mark.program
@pytest.mark.parametrize(
    "names",
    [["bundled", "long"], pytest.param(["wide", "bfloat16"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_a_plan_is_what_a_process_takes_at_most(tmp_path: Path, names: list[str]) -> None:
    fields = []
    for name in names:
        settings, shape = LARGE[name]
        model = write_tiny_gguf(tmp_path / f"{name}.gguf", **shape) if shape else BUNDLED_MODEL
        fields.append({**settings, "model": str(model), "threads": 1})
    command = [sys.executable, "-m", "tests.worker.loading.largest_step", *map(json.dumps, fields)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    took = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for name, one, bytes_of in zip(names, fields, took, strict=True):
        planned = plan(WorkerSettings.read(**one))
        assert planned.num_bytes - TOLERANCE_BYTES < bytes_of["peak_bytes"] <= planned.num_bytes, name
        assert bytes_of["started_bytes"] < planned.num_bytes - planned.kv_cache_bytes, name


def test_a_cache_that_does_not_fit_is_refused_with_both_numbers_and_one_that_does(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = free_bytes("cpu")  # what others take meanwhile is not counted
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: free)
    with pytest.raises(
        SettingsError, match=r"HERD_KV_CACHE_TOKENS=\d+ takes [\d,]+ bytes, but .* free on"
    ) as refusal:
        plan(WorkerSettings.read(model=tiny_path, kv_cache_tokens=10**12))
    fitting = int(str(refusal.value).rpartition("lower it to ")[2])
    assert plan(WorkerSettings.read(model=tiny_path, kv_cache_tokens=fitting * 9 // 10)).num_pages > 1


def test_a_cache_of_no_stated_size_leaves_room_for_the_rest(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = WorkerSettings.read(model=tiny_path, slots=32)
    whole = plan(settings)
    for num_bytes in range(
        whole.num_bytes, whole.num_bytes - whole.kv_cache_bytes, -whole.kv_cache_bytes // 9
    ):
        monkeypatch.setattr(memory_plan, "free_bytes", lambda device, num_bytes=num_bytes: num_bytes)
        found = plan(settings)
        found.check("tiny")
        assert found.num_bytes <= num_bytes
        assert replace(found, num_pages=found.num_pages + 1).num_bytes > min(num_bytes, whole.num_bytes)


@pytest.mark.parametrize("lacking", ["attention", "prefill_attention"])
def test_of_a_card_whose_kernels_do_half_of_attention_what_gathers_pages_counts(
    tiny_path: Path, lacking: str
) -> None:
    class Checked(UnloadedKernels):
        attention = prefill_attention = object()  # type: ignore[assignment]

    settings = WorkerSettings.read(model=tiny_path, device="cuda:0", dtype="float32", kv_cache_tokens=1024)
    whole, half = Checked("all right"), type("Half", (Checked,), {lacking: None})("half right")
    with open_model(tiny_path) as file:
        plans = [MemoryPlan.for_model(settings, file, "cuda:0", one, 10**9) for one in (whole, half)]
    paged, gathered = (one.step.attention_bytes(one.max_length) for one in plans)
    assert paged < gathered


def test_weights_stay_in_blocks_when_asked_or_where_numbers_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type="Q4_K", **WIDE)

    def form(weights: str) -> WeightForm:
        found = plan(WorkerSettings.read(model=path, weights=weights, slots=1))
        assert found.keeps_blocks is ("blocks" in found.form_note)
        return WeightForm.QUANTIZED if found.keeps_blocks else WeightForm.DENSE

    assert [form(weights) for weights in FORMS] == [WeightForm.DENSE, WeightForm.QUANTIZED, WeightForm.DENSE]
    needed = plan(WorkerSettings.read(model=path, weights="dense", slots=1)).num_bytes
    monkeypatch.setattr(memory_plan, "slab_bytes", lambda device: 0)
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: needed - 1)
    assert [form(weights) for weights in FORMS] == [
        WeightForm.QUANTIZED,
        WeightForm.QUANTIZED,
        WeightForm.DENSE,
    ]
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: needed // 2)
    with pytest.raises(SettingsError, match="HERD_WEIGHTS=auto"):
        plan(WorkerSettings.read(model=path, weights="dense", slots=1)).check("tiny")


def test_a_worker_plans_no_more_than_its_share(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers in containers, neither of which sees the other's plan, and neither has touched its own."""
    monkeypatch.setattr(memory_plan, "total_bytes", lambda device: 1_000_000_000)
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: 900_000_000)
    settings = WorkerSettings.read(model=tiny_path, slots=1024, memory_share=0.45)
    assert plan(settings).free_bytes == 450_000_000
    assert 2 * plan(settings).num_bytes <= 900_000_000
    little = WorkerSettings.read(model=tiny_path, memory_share=0.01)
    with pytest.raises(SettingsError, match=r"has 10,000,000 free\. Fix: .* or HERD_MEMORY_SHARE"):
        plan(little).check("tiny")


def test_a_context_longer_than_the_models_is_refused_with_both_numbers(tiny_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"HERD_CONTEXT_TOKENS=513, but .* was trained for 512"):
        plan(WorkerSettings.read(model=tiny_path, context_tokens=513))


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = plan(tiny_settings).num_bytes // 2
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: num_bytes - 1)
    monkeypatch.delattr(Llama, "load")
    settings = tiny_settings.model_copy(update={"kv_cache_tokens": 0})
    with pytest.raises(
        SettingsError,
        match=r"tiny.gguf needs [\d,]+ bytes .*weights [\d,]+, KV cache [\d,]+, .* "
        rf"cpu has {num_bytes - 1:,} free. Fix: a smaller model, HERD_DTYPE=bfloat16, ",
    ):
        LoadedModel.load(settings, "cpu")


def test_memory_that_is_gone_when_it_is_wanted_is_a_refusal_with_the_numbers(
    tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another process was faster, or the system promises no more than it has."""
    monkeypatch.setattr(MemoryPlan, "kv_cache_bytes", 0)
    settings = tiny_settings.model_copy(update={"kv_cache_tokens": 1 << 40})
    with pytest.raises(
        SettingsError,
        match=r"\(weights .*cpu had [\d,]+ free, but then \d+ bytes more were needed.*Fix: a small",
    ):
        LoadedModel.load(settings, "cpu")
