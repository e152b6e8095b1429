"""The memory of all graphs is taken at the start: the largest one is captured before any other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llama_herd.model.cache import Cache
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.graph_device import Replay
from llama_herd.worker.engine.prefill import TOKENS, Prefill, PromptSpan
from llama_herd.worker.engine.sampling.sampler import Drawing
from llama_herd.worker.engine.slots import POSITION, Slots
from llama_herd.worker.engine.staging_buffer import StagingBuffer
from llama_herd.worker.engine.step_graphs import StepGraphs, bucket_of
from llama_herd.worker.loading.loaded_model import LoadedModel
from tests.worker.engine.sampling.rows import row
from tests.worker.stand_in_device import StandInDevice


class Measuring(StandInDevice):
    """Notes how many rows of what all graphs share each capture changes."""

    def __init__(self, graphs_of: Callable[["Measuring"], StepGraphs]) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []
        self.graphs = graphs_of(self)

    def capture(self, work: Callable[[], None]) -> Replay:
        found = self.graphs.hidden, self.graphs.logits
        for one in found:
            one.fill_(-7)
        replay = super().capture(work)
        hidden, logits = (int((one != -7).any(dim=-1).sum()) for one in found)
        self.sizes.append((hidden, logits))
        return replay


@pytest.fixture
def cache(model: LoadedModel) -> Cache:
    return Cache(model.llama.config, 16, dtype=model.cache.storage.dtype, consecutive=False)


@pytest.fixture
def slots(cache: Cache) -> Slots:
    return Slots(5, cache.max_length, cache.trash_page, cache.device)


def test_a_check_captures_the_largest_graphs_first(model: LoadedModel, cache: Cache, slots: Slots) -> None:
    """So torch cuts the memory of all others out of its own; the other way round each would take more."""
    device = Measuring(lambda device: StepGraphs(model.llama, cache, slots, device, 5))
    most = bucket_of(5)
    assert device.graphs.check() == ""
    assert device.sizes == [(most + TOKENS[-1], 0), (0, most), (1, 0), (0, 1), (0, 1), (most + TOKENS[0], 0)]
    _, largest, *_ = device.graphs._replays
    assert largest == (most, Drawing(*[True] * len(Drawing()))), "a draw that does all that there is"


class Small(StandInDevice):
    """Has memory for its second capture, and those after it."""

    def capture(self, work: Callable[[], None]) -> Replay:
        replay = super().capture(work)
        if self.num_captures == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return replay


def test_a_card_without_room_for_the_largest_serves_with_smaller_ones(
    model: LoadedModel, cache: Cache, slots: Slots
) -> None:
    assert StepGraphs(model.llama, cache, slots, Small(), 5).check() == ""


def test_what_it_computes_is_trash(model: LoadedModel, cache: Cache, slots: Slots) -> None:
    """No slot and no page but trash is changed, and nothing of trash but its last token."""
    cache.storage.fill_(1.0)

    def kept() -> Tensor:
        words = slots.words[:, 1:]
        return torch.cat((cache.storage[:, :, :, :16].flatten().double(), words[:5].flatten().double()))

    before = kept()
    graphs = StepGraphs(model.llama, cache, slots, StandInDevice(), 5)
    graphs.check()
    graphs.capture_usual(lambda done, total: None)
    assert kept().equal(before)
    assert not slots.words[slots.trash, POSITION]


def test_a_capture_in_traffic_repeats_nothing_of_the_step_before(
    model: LoadedModel, cache: Cache, slots: Slots
) -> None:
    """The slots of its rows and of its prompts may be others' by now."""
    device = StandInDevice()
    graphs, buffer = StepGraphs(model.llama, cache, slots, device, 5), StagingBuffer(device, cache.device)
    buffer.open()
    prefill = Prefill.of([PromptSpan(slot=2, start=0, num_tokens=9)])
    graphs.show_rows([0, 1], buffer)
    graphs.show_prompts(prefill, buffer)
    graphs.forward(2, prefill.bucket)()
    buffer.close()
    buffer.wait()
    cache.storage.fill_(1.0)
    graphs.forward(2, TOKENS[1])
    graphs.draw(2, Drawing())
    assert (cache.storage[:, :, :, :16] == 1.0).all()
    assert not slots.words[:5].any()


def test_steps_of_usual_jobs_are_captured_before_the_first_one(
    model: LoadedModel, cache: Cache, slots: Slots
) -> None:
    """Any number of rows beside any prompts, drawn as jobs that say nothing of it ask, or greedily."""
    device, noted = StandInDevice(), list[tuple[int, int]]()
    graphs = StepGraphs(model.llama, cache, slots, device, 5)
    graphs.check()
    graphs.capture_usual(lambda done, total: noted.append((done, total)))
    num_captures = device.num_captures
    for num_rows in range(1, 6):
        for num_tokens in (0, *TOKENS):
            graphs.forward(num_rows, num_tokens)
        for params in (SamplingParams(), SamplingParams(temperature=0)):
            graphs.draw(num_rows, Drawing.of(row(params)))
    assert device.num_captures == num_captures
    total = 4 + len(TOKENS) + 8
    assert noted == [(done, total) for done in range(1, total + 1)]


def test_a_card_without_room_for_all_graphs_captures_the_rest_when_it_has(
    model: LoadedModel, cache: Cache, slots: Slots
) -> None:
    graphs, noted = StepGraphs(model.llama, cache, slots, Small(), 5), list[int]()
    graphs.capture_usual(lambda done, total: noted.append(total))
    assert len(graphs._replays) == noted[-1] - 1


@pytest.mark.long
def test_what_forwards_take_is_measured_in_trash(model: LoadedModel, cache: Cache, slots: Slots) -> None:
    cache.storage.fill_(1.0)
    graphs = StepGraphs(model.llama, cache, slots, StandInDevice(), 5)
    graphs.capture_usual(lambda done, total: None)
    words, pages = slots.words[: slots.trash].clone(), cache.storage[:, :, :, :16].clone()
    costs = graphs.costs()
    assert costs is not None
    assert costs.row_s > 0
    assert tuple(costs.prompts_s) == TOKENS
    assert list(costs.prompts_s.values()) == sorted(costs.prompts_s.values())
    assert costs.prompts_s[TOKENS[0]] > 0
    assert slots.words[: slots.trash].equal(words)
    assert cache.storage[:, :, :, :16].equal(pages)


def test_what_forwards_take_is_not_known_where_memory_lacks_for_one(
    model: LoadedModel, cache: Cache, slots: Slots
) -> None:
    assert StepGraphs(model.llama, cache, slots, StandInDevice(), 5).costs() is None
