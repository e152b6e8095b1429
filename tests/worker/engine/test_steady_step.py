"""A step in which nobody comes or goes asks nothing of the device but to replay a graph and to copy ids."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence as Args
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from llama_herd.worker.engine.graph_device import Replay
from llama_herd.worker.engine.staging_buffer import ALIGNMENT, SENT_BYTES, Arena, StagingBuffer
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import PREFIX, Collector, sequence
from tests.worker.overlapping import Overlapping, with_layers
from tests.worker.stand_in_device import StandInDevice, TooEarlyError
from tests.worker.ways_to_draw import MODES, jobs

pytestmark = pytest.mark.usefixtures("masks_as_on_a_card")

#: What makes the host wait for a device: a number, or a shape that depends on numbers.
SYNCHRONISING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "equal",
    "is_nonzero",
    "bincount",
)
#: What only looks at memory that is there.
VIEWS = ("slice", "view", "as_strided", "select", "detach", "alias", "resolve_conj", "resolve_neg")


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that the host runs, apart from what a card would do by itself."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to say so at each operator takes longer than the operator."""
        return False

    def __init__(self, device: StandInDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.of_host: Counter[str] = Counter()
        self.of_device: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Args[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if not self._device.is_hiding:
            (self.of_device if self._device.is_working else self.of_host)[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def synchronising(self) -> dict[str, int]:
        both = self.of_host + self.of_device
        return {name: both[name] for name in SYNCHRONISING if both[name]}


@contextmanager
def watched(overlapping: Overlapping) -> Iterator[Watch]:
    with Watch(overlapping.device) as watch:
        yield watch


def watch_graphs_once(device: StandInDevice, patch: pytest.MonkeyPatch) -> None:
    """When they are captured: each replay does the same, and does not come by the host on a card."""
    capture = device.capture

    def captured(work: Callable[[], None]) -> Replay:
        replay = capture(work)

        def unwatched() -> None:
            with _disable_current_modes():
                replay()

        return unwatched

    patch.setattr(device, "capture", captured)


def decoding(model: LoadedModel, settings: WorkerSettings, **sampling: Any) -> Overlapping:
    """An engine all of whose rows have decoded for some steps."""
    overlapping = Overlapping(model, settings, Collector(), with_layers(model.llama, 1))
    for number in range(settings.slots):
        asked = {"max_tokens": 60, "ignore_eos": True, "seed": number, **sampling}
        overlapping.engine.submit(sequence(model, f"job-{number}", **asked))
    for _ in range(6):
        overlapping.engine.step()
    assert [len(one.ids) for one in overlapping.engine.scheduler.running] == [5] * settings.slots
    return overlapping


@pytest.mark.parametrize("mode", ["greedy", "filters", "a window"])
def test_a_steady_step_allocates_nothing_uploads_nothing_and_waits_for_nothing_but_the_one_before(
    wide: LoadedModel, settings: WorkerSettings, mode: str
) -> None:
    overlapping = decoding(wide, settings, **MODES[mode])
    device = overlapping.device
    before = (device.num_host_bytes, device.num_sent, device.num_captures, device.num_events)
    replays, landed, waits = device.num_replays, device.num_landed, device.num_waits
    with watched(overlapping) as watch:
        for _ in range(4):
            overlapping.engine.step()
    assert (device.num_host_bytes, device.num_sent, device.num_captures, device.num_events) == before
    assert (device.num_replays - replays, device.num_landed - landed, device.num_waits - waits) == (8, 4, 4)
    assert watch.synchronising == {}
    assert set(watch.of_host) <= set(VIEWS)


def test_a_step_with_prompts_replays_two_graphs_and_sends_which_tokens_these_are(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    """Nothing is launched layer by layer."""
    few = settings.model_copy(update={"prefill_tokens": 16})
    overlapping = Overlapping(wide, few, Collector())
    engine, device = overlapping.engine, overlapping.device
    engine.submit(sequence(wide, "stream", max_tokens=60, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.submit(long := sequence(wide, "long", PREFIX))
    engine.step()
    before = (device.num_replays, device.num_sent, device.num_captures)
    with watched(overlapping) as watch:
        engine.step()
    assert 0 < long.num_cached < len(long.prompt_ids) - 16
    after = (device.num_replays, device.num_sent, device.num_captures)
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 1, 0]
    assert set(watch.of_host) <= {*VIEWS, "copy_"}, watch.of_host


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_no_step_whatsoever_waits_for_the_device_or_takes_memory_that_it_must_first_be_given(
    wide: LoadedModel, settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Prompts, rows that are drawn apart, scores, joins, ends and forks: all but the first steps."""
    overlapping = Overlapping(wide, settings, Collector(), with_layers(wide.llama, 1))
    watch_graphs_once(overlapping.device, monkeypatch)
    host_bytes = overlapping.device.num_host_bytes
    overlapping.engine.submit(*jobs(wide, mode))
    with watched(overlapping) as watch:
        while overlapping.engine.has_work:
            overlapping.engine.step()
    assert watch.synchronising == {}
    if mode != "a prompt alone":  # it has no step that decodes
        assert watch.of_device["linear"], "it has seen a graph"
    assert overlapping.device.num_host_bytes == host_bytes
    assert overlapping.device.num_events == 2


def test_a_step_sends_a_word_for_each_row_when_rows_change(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    overlapping = decoding(wide, settings)
    engine, device = overlapping.engine, overlapping.device
    sent = device.num_sent
    engine.abort([engine.scheduler.running[3].info], "cancelled")
    engine.step()
    assert device.num_sent == sent + 1
    engine.step()
    assert device.num_sent == sent + 1


def test_the_stand_in_shows_nothing_before_it_may_be_known() -> None:
    device = StandInDevice()
    buffer = StagingBuffer(device, torch.device("cpu"))
    buffer.open()
    sent = buffer.send([1, 2, 3])
    landed = buffer.land(sent)
    assert landed.tolist() != [1, 2, 3]
    buffer.close()
    buffer.wait()
    assert landed.tolist() == [1, 2, 3]


def test_the_stand_in_notices_memory_that_is_written_to_too_early() -> None:
    device = StandInDevice()
    buffer = StagingBuffer(device, torch.device("cpu"))
    buffer.open()
    buffer.send([1, 2, 3])
    buffer._out.clear()
    buffer.send([4, 5, 6])
    buffer.close()
    with pytest.raises(TooEarlyError):
        buffer.wait()


def test_more_than_a_staging_buffer_has_room_for_takes_memory_of_its_own() -> None:
    device = StandInDevice()
    buffer = StagingBuffer(device, torch.device("cpu"))
    buffer.open()
    many = range(SENT_BYTES // 8 + 1)
    assert buffer.send(many).tolist() == list(many)
    landed = buffer.land(torch.arange(1 << 17))
    buffer.close()
    buffer.wait()
    assert landed.equal(torch.arange(1 << 17))


def test_a_staging_buffer_whose_step_nobody_read_is_waited_for_before_it_is_used_again() -> None:
    device = StandInDevice()
    buffer = StagingBuffer(device, torch.device("cpu"))
    for numbers in ([1, 2], [3, 4]):
        buffer.open()
        buffer.send(numbers)
        buffer.close()
    assert device.num_waits == 1


@pytest.mark.parametrize("num_bytes", [1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, 2 * ALIGNMENT])
def test_parts_of_an_arena_lie_side_by_side_as_far_as_there_is_room(num_bytes: int) -> None:
    memory = torch.zeros(10 * ALIGNMENT, dtype=torch.uint8)
    arena = Arena(memory)
    for _ in range(2):
        parts = list(iter(partial(arena.take, num_bytes), None))
        assert {len(part) for part in parts} == {num_bytes}
        every = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        assert [part.storage_offset() for part in parts] == [*range(0, len(memory) - num_bytes + 1, every)]
        arena.clear()
