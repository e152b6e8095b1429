"""Which runner the engine gets: one whose steps overlap, where a check on this device finds them right."""

from time import monotonic
from typing import NamedTuple

import structlog

from llama_herd.model.cache import Cache
from llama_herd.model.heads import Head
from llama_herd.model.kernels.draw import Draw
from llama_herd.model.llama2 import Llama
from llama_herd.worker.engine.device_error import is_lack_of_memory, raise_if_lost
from llama_herd.worker.engine.graph_device import CudaDevice, UncapturedDevice
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.prefill_budget import ForwardCosts
from llama_herd.worker.engine.runner import Runner
from llama_herd.worker.engine.slot_runner import SlotRunner
from llama_herd.worker.engine.step_graphs import StepGraphs
from llama_herd.worker.loading.loading_bar import loading_bar
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)


class ChosenRunner(NamedTuple):
    """A runner, how its steps go, for the log, and what its forwards take, where that was measured."""

    runner: Runner
    how: str
    costs: ForwardCosts | None = None


def choose_runner(
    llama: Llama,
    cache: Cache,
    settings: WorkerSettings,
    draw: Draw | None = None,
    head: Head | None = None,
) -> ChosenRunner:
    """The fastest runner that holds here.

    A card computes its first steps now. `draw` is a native one. `head` is that of a model that embeds: its
    steps are prompts alone.
    """
    if head is not None:
        return ChosenRunner(ModelRunner(llama, cache, head=head), "one by one, of whole texts")
    if cache.pages.consecutive:
        return ChosenRunner(ModelRunner(llama, cache, draw), "one by one, on a CPU")
    if settings.graphs == "off":
        return ChosenRunner(ModelRunner(llama, cache), "one by one: HERD_GRAPHS=off")
    if not _attends_over_pages(llama, cache):
        return ChosenRunner(ModelRunner(llama, cache), "one by one: no kernel attends over pages here")
    return _overlapping(llama, cache, settings)


def _overlapping(llama: Llama, cache: Cache, settings: WorkerSettings) -> ChosenRunner:
    """The runner whose steps overlap, if a check of it passes; else the plain one, and why."""
    is_captured = settings.graphs == "auto"
    costs = None
    try:
        device = CudaDevice() if is_captured else UncapturedDevice()
        runner = SlotRunner(llama, cache, device, settings.slots)
        complaint = runner.graphs.check()
        if is_captured and not complaint:
            costs = _captured(runner.graphs)
    except Exception as error:  # whatever a driver may raise: the plain path is there
        raise_if_lost(error)
        if is_lack_of_memory(error):
            raise
        log.warning("steps cannot overlap", exc_info=True)
        complaint = f"{type(error).__name__}: {error}".splitlines()[0]
    if complaint:
        return ChosenRunner(ModelRunner(llama, cache), f"one by one: {complaint}")
    how = "as captured graphs" if is_captured else "kernel by kernel: HERD_GRAPHS=uncaptured"
    return ChosenRunner(runner, f"overlapping, {how}", costs)


def _captured(graphs: StepGraphs) -> ForwardCosts | None:
    """Capture the usual steps, and measure them."""
    started_s = monotonic()
    with loading_bar("capturing graphs", "graphs") as note:
        graphs.capture_usual(note)
    captured_s, costs = monotonic(), graphs.costs()
    log.info(
        "steps captured",
        seconds=round(captured_s - started_s, 3),
        measured_s=round(monotonic() - captured_s, 3),
        milliseconds=costs and costs.milliseconds,
    )
    return costs


def _attends_over_pages(llama: Llama, cache: Cache) -> bool:
    """Whether rows that decode read their pages where they lie; else a step would copy all of them."""
    attention, cached = llama.blocks[0].attention.native, cache.storage[:, 0]
    queries = cached.new_empty(1, llama.config.num_heads, llama.config.head_dim)
    return attention is not None and attention.takes(queries, cached)
