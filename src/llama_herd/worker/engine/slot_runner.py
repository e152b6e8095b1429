"""SlotRunner: launches a step before the one before was read, on a device that works on its own time.

Letters: V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Sequence as Rows
from functools import partial, reduce
from operator import or_
from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.worker.engine.graph_device import GraphDevice
from llama_herd.worker.engine.model_runner import readings_of, scores_of
from llama_herd.worker.engine.prefill import prefills_of
from llama_herd.worker.engine.runner import Read, Reading, Row
from llama_herd.worker.engine.sampling.row import SamplingRow
from llama_herd.worker.engine.sampling.rules import apply_rules, is_apart
from llama_herd.worker.engine.sampling.sampler import Drawing, drawn
from llama_herd.worker.engine.sampling.scores import Scores, Told, sampled_tokens
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.slots import Slots
from llama_herd.worker.engine.staging_buffer import StagingBuffer
from llama_herd.worker.engine.step_graphs import StepGraphs


class Held(NamedTuple):
    """A slot's facts on the host: how its tokens are drawn, and whether outside the graph."""

    drawing: Drawing
    is_apart: bool  # whether it is drawn after the graph, at least at first

    @classmethod
    def of(cls, row: SamplingRow) -> Self:
        return cls(Drawing.of(row), is_apart(row))


class Members(NamedTuple):
    """The rows that draw, as long as they stay the same."""

    slots: list[int]
    drawing: Drawing
    apart: list[int]  # numbers of the rows that are drawn after the graph, at least at first


#: Before the first step, and where a slot may be of somebody else now.
NOBODY = Members([], Drawing(), [])


class Drawn(NamedTuple):
    """Drawn tokens and what is told of them, on their way to the host."""

    ids: Tensor
    told: Told | None


class SlotRunner:
    """A step is one forward of rows and tokens of prompts, and one draw: two captured graphs.

    The last token of a complete prompt is a row like those that decode: its slot holds it already. A step
    with more tokens of prompts than a graph takes has forwards of some more before that.

    Nothing here waits for the device but `read`. What a launch changes of the slots it changes last, or
    undoes when it fails, so it may be repeated.
    """

    overlaps = True

    def __init__(self, llama: Llama, cache: Cache, device: GraphDevice, num_slots: int) -> None:
        self.on_layer: Callable[[], None] | None = None  # nobody is told: layers are captured
        self._llama = llama
        self._cache = cache
        self._device = device
        self._slots = Slots(num_slots, cache.max_length, cache.trash_page, cache.device)
        self.graphs = StepGraphs(llama, cache, self._slots, device, num_slots)
        self._held: dict[int, Held] = {}
        self._members = NOBODY
        self._free_buffers = deque(StagingBuffer(device, cache.device) for _ in range(2))
        self._buffer: StagingBuffer | None = None  # of the step that is being launched

    @torch.inference_mode()
    def begin(self, sequence: Sequence) -> None:
        buffer = self._open_buffer()
        self._members = NOBODY  # one of its slots may be another one now
        self._cache.copy_pages(sequence.copies, buffer.send)
        buffer.send_into(self._slots.words[sequence.slot], self._slots.words_of(sequence))
        self._held[sequence.slot] = Held.of(sequence.sampling_row())

    @torch.inference_mode()
    def launch(self, rows: Rows[Row]) -> Read:
        drawing, prefills = [row for row in rows if row.is_complete], prefills_of(rows)
        members = self._members_of(drawing)
        # What is captured now may fail: then nothing has begun.
        forwards = [self.graphs.forward(0, prefill.bucket) for prefill in prefills[:-1]]
        forwards.append(self.graphs.forward(len(drawing), prefills[-1].bucket))
        draw = self.graphs.draw(len(drawing), members.drawing) if drawing else _nothing
        buffer = self._open_buffer()
        try:
            self.graphs.show_rows(members.slots, buffer)
            for prefill, forward in zip(prefills, forwards, strict=True):
                self.graphs.show_prompts(prefill, buffer)
                forward()
            scores = self._scores(rows, self.graphs.hidden_of_prompts(len(drawing), prefills[-1]), buffer)
            draw()
            found = self._drawn(drawing, buffer)
        except BaseException:
            self._free_buffers.append(buffer)  # nobody will read it
            raise
        finally:
            buffer.close()
            self._buffer = None
        return partial(self._read, buffer, rows, scores, found)

    def _read(
        self, buffer: StagingBuffer, rows: Rows[Row], scores: dict[int, Scores], drawn: Drawn
    ) -> list[Reading]:
        buffer.wait()
        readings = readings_of(rows, scores, sampled_tokens(*drawn))
        self._free_buffers.append(buffer)
        return readings

    def _open_buffer(self) -> StagingBuffer:
        """The staging buffer of the step under launch; a third is made only if a step has several parts."""
        if self._buffer is None:
            free = self._free_buffers
            self._buffer = free.popleft() if free else StagingBuffer(self._device, self._cache.device)
            self._buffer.open()
        return self._buffer

    def _members_of(self, rows: list[Row]) -> Members:
        slots = [row.sequence.slot for row in rows]
        if slots != self._members.slots:
            apart = [number for number, slot in enumerate(slots) if self._held[slot].is_apart]
            self._members = Members(slots, self._drawing_of(rows), apart)
        return self._members

    def _drawing_of(self, rows: Rows[Row]) -> Drawing:
        """All work of the draw of these rows."""
        return reduce(or_, (self._held[row.sequence.slot].drawing for row in rows), Drawing())

    def _scores(self, rows: Rows[Row], hidden: Tensor, buffer: StagingBuffer) -> dict[int, Scores]:
        """Scores of prompts by numbers of rows, on their way to the host. They are the last of `hidden`."""
        scored = {number: row for number, row in enumerate(rows) if row.num_scores}
        if not scored:
            return {}
        sizes = [row.num_scores for row in scored.values()]
        logits = torch.split(self._llama.logits(hidden[-sum(sizes) :]), sizes)  # (N, V) each
        return {
            number: scores_of(row, some, buffer.send).each(buffer.land)
            for (number, row), some in zip(scored.items(), logits, strict=True)
        }

    def _drawn(self, rows: list[Row], buffer: StagingBuffer) -> Drawn:
        """What the step has drawn, on its way to the host; some rows are drawn again before."""
        apart = [number for number in self._members.apart if is_apart(rows[number].sequence.sampling_row())]
        try:
            told = self._draw_apart(apart, [rows[number] for number in apart], buffer)
            return Drawn(buffer.land(self.graphs.drawn[: len(rows)]), told)
        except BaseException:
            self.graphs.undo(len(rows))
            raise

    def _draw_apart(self, numbers: list[int], rows: list[Row], buffer: StagingBuffer) -> Told | None:
        """Draw rows of these numbers again, by the logits that the graph has left."""
        if not numbers:
            return None
        picked, sampled = buffer.send(numbers), [row.sequence.sampling_row() for row in rows]
        slot_rows = self.graphs.rows(picked)
        ruled = apply_rules(self.graphs.logits[picked], sampled, buffer.send, slot_rows)
        ids = drawn(ruled.drawn, slot_rows, self._drawing_of(rows))
        told = Told.if_any(ruled.told, ids, sampled, buffer.send)
        self._slots.settle(slot_rows, slot_rows.next_positions, ids)
        self.graphs.drawn[picked] = ids
        return told and told.each(buffer.land).numbered(numbers)


def _nothing() -> None:
    """The draw of no rows."""
