"""The memory of all graphs is taken at the start: the largest one is captured before any other."""

from collections.abc import Callable

import torch
from torch import Tensor

from llama_herd.model.cache import Cache
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.decode_graphs import DecodeGraphs, bucket_of
from llama_herd.worker.engine.graph_device import Replay
from llama_herd.worker.engine.sampling.sampler import Drawing
from llama_herd.worker.engine.slots import Slots
from llama_herd.worker.loading.loaded_model import LoadedModel
from tests.worker.engine.sampling.rows import row
from tests.worker.stand_in_device import StandInDevice


class Measuring(StandInDevice):
    """Notes the largest tensor of each capture, which is of the drawing."""

    def __init__(self, graphs_of: Callable[["Measuring"], DecodeGraphs]) -> None:
        super().__init__()
        self.num_rows: list[int] = []
        self.graphs = graphs_of(self)

    def capture(self, work: Callable[[], None]) -> Replay:
        self.graphs.drawn.fill_(-7)
        replay = super().capture(work)
        self.num_rows.append(int((self.graphs.drawn != -7).sum()))
        return replay


def test_a_check_captures_the_largest_graph_first(model: LoadedModel) -> None:
    """So torch cuts the memory of all others out of its own; the other way round each would take more."""
    cache = Cache(model.llama.config, 16, dtype=model.cache.storage.dtype, consecutive=False)
    slots = Slots(5, cache.max_length, cache.trash_page, cache.device)
    device = Measuring(lambda device: DecodeGraphs(model.llama, cache, slots, device, 5))
    assert device.graphs.check() == ""
    assert device.num_rows == [bucket_of(5), 1, 1]
    largest, *_ = device.graphs._replays
    assert largest[0] == bucket_of(5)
    assert all(largest[1]), "a draw that does all that there is"


class Small(StandInDevice):
    """Has memory for its second capture, and those after it."""

    def capture(self, work: Callable[[], None]) -> Replay:
        replay = super().capture(work)
        if self.num_captures == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return replay


def test_a_card_without_room_for_the_largest_serves_with_smaller_ones(model: LoadedModel) -> None:
    cache = Cache(model.llama.config, 16, dtype=model.cache.storage.dtype, consecutive=False)
    slots = Slots(5, cache.max_length, cache.trash_page, cache.device)
    assert DecodeGraphs(model.llama, cache, slots, Small(), 5).check() == ""


def test_what_it_computes_is_trash(model: LoadedModel) -> None:
    """No slot and no page but trash is changed."""
    cache = Cache(model.llama.config, 16, dtype=model.cache.storage.dtype, consecutive=False)
    cache.storage.fill_(1.0)
    slots = Slots(5, cache.max_length, cache.trash_page, cache.device)

    def kept() -> Tensor:
        return torch.cat((cache.storage[:, :, :, :16].flatten().double(), slots.words[:5].flatten().double()))

    before = kept()
    DecodeGraphs(model.llama, cache, slots, StandInDevice(), 5).check()
    assert kept().equal(before)


def test_steps_of_usual_jobs_are_captured_before_the_first_one(model: LoadedModel) -> None:
    """Any number of rows, drawn as jobs that say nothing of it ask, or greedily."""
    cache = Cache(model.llama.config, 16, dtype=model.cache.storage.dtype, consecutive=False)
    slots, device = Slots(5, cache.max_length, cache.trash_page, cache.device), StandInDevice()
    graphs, noted = DecodeGraphs(model.llama, cache, slots, device, 5), list[tuple[int, int]]()
    graphs.check()
    graphs.capture_usual(lambda done, total: noted.append((done, total)))
    num_captures = device.num_captures
    for num_rows in range(1, 6):
        for params in (SamplingParams(), SamplingParams(temperature=0)):
            graphs.prepared(num_rows, Drawing.of(row(params)))
    assert device.num_captures == num_captures
    assert noted == [(done, 8) for done in range(1, 9)]


def test_a_card_without_room_for_all_graphs_captures_the_rest_when_it_has(model: LoadedModel) -> None:
    cache = Cache(model.llama.config, 16, dtype=model.cache.storage.dtype, consecutive=False)
    slots = Slots(5, cache.max_length, cache.trash_page, cache.device)
    graphs = DecodeGraphs(model.llama, cache, slots, Small(), 5)
    graphs.capture_usual(lambda done, total: None)
    assert len(graphs._replays) == 7
