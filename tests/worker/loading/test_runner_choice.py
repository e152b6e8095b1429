"""The runner that overlaps is taken where all that it needs is there and right; a note says so."""

from collections.abc import Callable

import pytest
import torch

from llama_herd.model.cache import Cache
from llama_herd.worker.engine.graph_device import Replay
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.slot_runner import SlotRunner
from llama_herd.worker.engine.slots import Slots
from llama_herd.worker.engine.step_graphs import StepGraphs
from llama_herd.worker.loading import runner_choice
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.runner_choice import choose_runner
from llama_herd.worker.settings import WorkerSettings
from tests.model.plain_kernels import with_plain_kernels
from tests.worker.stand_in_device import StandInDevice


class Forgetful(StandInDevice):
    """Replays leave nothing behind."""

    def capture(self, work: Callable[[], None]) -> Replay:
        super().capture(work)
        return lambda: None


class Refusing(StandInDevice):
    def capture(self, work: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")


class Uncaptured(StandInDevice):
    def capture(self, work: Callable[[], None]) -> Replay:
        return work


class Broken(StandInDevice):
    def __init__(self) -> None:
        raise RuntimeError("no graphs in this driver")


class Full(StandInDevice):
    def capture(self, work: Callable[[], None]) -> Replay:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.fixture
def paged(model: LoadedModel) -> Cache:
    """As on a GPU."""
    return Cache(model.llama.config, 16, dtype=model.cache.storage.dtype, consecutive=False)


@pytest.fixture
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    return tiny_settings


def choose(
    model: LoadedModel,
    cache: Cache,
    settings: WorkerSettings,
    device: type[StandInDevice] = StandInDevice,
) -> tuple[type, str]:
    """The kind of runner for a model with a GPU's kernels, and the note."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_choice, "CudaDevice", device)
        patch.setattr(runner_choice, "UncapturedDevice", Uncaptured)
        chosen = choose_runner(with_plain_kernels(model.llama)[0], cache, settings)
    assert (chosen.costs is not None) == chosen.how.endswith("as captured graphs")
    return type(chosen.runner), chosen.how


@pytest.mark.long
def test_steps_overlap_where_a_replayed_one_is_right(
    model: LoadedModel, paged: Cache, settings: WorkerSettings
) -> None:
    assert choose(model, paged, settings) == (SlotRunner, "overlapping, as captured graphs")


@pytest.mark.parametrize(
    ("graphs", "kind", "note"),
    [
        ("off", ModelRunner, "one by one: HERD_GRAPHS=off"),
        ("uncaptured", SlotRunner, "overlapping, kernel by kernel: HERD_GRAPHS=uncaptured"),
    ],
)
def test_a_setting_leaves_them_out(
    model: LoadedModel, paged: Cache, settings: WorkerSettings, graphs: str, kind: type, note: str
) -> None:
    settings = WorkerSettings.model_validate(settings.model_dump() | {"graphs": graphs})
    assert choose(model, paged, settings) == (kind, note)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (Forgetful, "a replayed step differs from the same step computed kernel by kernel"),
        (Refusing, "RuntimeError: operation not permitted when stream is capturing"),
        (Broken, "RuntimeError: no graphs in this driver"),
    ],
)
def test_what_does_not_hold_is_not_taken_and_the_note_says_why(
    model: LoadedModel, paged: Cache, settings: WorkerSettings, device: type[StandInDevice], reason: str
) -> None:
    assert choose(model, paged, settings, device) == (ModelRunner, f"one by one: {reason}")


def test_a_lack_of_memory_is_no_reason_to_go_on(
    model: LoadedModel, paged: Cache, settings: WorkerSettings
) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        choose(model, paged, settings, Full)


def test_without_a_kernel_that_reads_pages_steps_go_one_by_one(
    model: LoadedModel, paged: Cache, settings: WorkerSettings
) -> None:
    chosen = choose_runner(model.llama, paged, settings)
    assert isinstance(chosen.runner, ModelRunner)
    assert chosen.how == "one by one: no kernel attends over pages here"


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_cpu_reads_each_step_before_the_next_one(
    tiny_settings: WorkerSettings, deterministic: bool
) -> None:
    settings = tiny_settings.model_copy(update={"deterministic": deterministic})
    model = LoadedModel.load(settings, "cpu")
    engine = model.engine(settings, lambda outputs: None)
    assert isinstance(engine.runner, ModelRunner)
    assert model.steps_note == "one by one, on a CPU"


def test_the_memory_plan_counts_what_steps_that_overlap_keep(model: LoadedModel, paged: Cache) -> None:
    num_slots, config = 4, model.llama.config
    runner = SlotRunner(model.llama, paged, StandInDevice(), num_slots)
    words, graphs = runner._slots.words, runner.graphs
    kept = graphs.logits.nbytes + graphs.hidden.nbytes
    assert Slots.num_bytes(num_slots, paged.max_length) == words.nbytes
    assert StepGraphs.num_bytes(num_slots, config, paged.storage.itemsize) == kept
    assert model.plan.step.graph_bytes(paged.max_length) > words.nbytes + kept
