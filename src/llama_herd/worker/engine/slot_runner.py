"""SlotRunner: launches a step before the one before was read, on a device that works on its own time.

Letters: R rows of logits, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Sequence as Rows
from functools import partial, reduce
from operator import or_
from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.model.batch import Batch
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.worker.engine.decode_graphs import DecodeGraphs
from llama_herd.worker.engine.graph_device import GraphDevice, Replay
from llama_herd.worker.engine.runner import Read, Reading, chunk_of, readings_of, split_logits
from llama_herd.worker.engine.sampling.row import SamplingRow
from llama_herd.worker.engine.sampling.rules import apply_rules, is_apart
from llama_herd.worker.engine.sampling.sampler import Drawing, drawn
from llama_herd.worker.engine.sampling.scores import Scores, Told, sampled_tokens
from llama_herd.worker.engine.scheduler import Row
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.slots import SlotRows, Slots
from llama_herd.worker.engine.staging_buffer import StagingBuffer


class Held(NamedTuple):
    """A slot's facts on the host: how its tokens are drawn, and whether outside the graph."""

    drawing: Drawing
    is_apart: bool  # whether it is drawn after the graph, at least at first

    @classmethod
    def of(cls, row: SamplingRow) -> Self:
        return cls(Drawing.of(row), is_apart(row))


class Members(NamedTuple):
    """The rows that decode, as long as they stay the same."""

    slots: list[int]
    drawing: Drawing
    apart: list[int]  # numbers of the rows that are drawn after the graph, at least at first


class Drawn(NamedTuple):
    """Drawn tokens that are not in their slots yet, and what is told of them, on its way to the host."""

    slot_rows: SlotRows
    ids: Tensor
    told: Told | None


class Prefilled(NamedTuple):
    """A launched prefill: its rows, scores of prompts by numbers of rows, and what the complete rows drew."""

    rows: list[Row]
    scores: dict[int, Scores]
    drawn: Drawn | None


class SlotRunner:
    """Rows that decode are one graph; prompts are computed kernel by kernel before it.

    Nothing here waits for the device but `read`. What a launch changes of the slots it changes last, or
    undoes when it fails, so it may be repeated.
    """

    overlaps = True

    def __init__(self, llama: Llama, cache: Cache, device: GraphDevice, num_slots: int) -> None:
        self.on_layer: Callable[[], None] | None = None
        self._llama = llama
        self._cache = cache
        self._device = device
        self._slots = Slots(num_slots, cache.max_length, cache.trash_page, cache.device)
        self.graphs = DecodeGraphs(llama, cache, self._slots, device, num_slots)
        self._held: dict[int, Held] = {}
        self._members = Members([], Drawing(), [])
        self._free_buffers = deque(StagingBuffer(device, cache.device) for _ in range(2))
        self._buffer: StagingBuffer | None = None  # of the step that is being launched

    @torch.inference_mode()
    def begin(self, sequence: Sequence) -> None:
        buffer = self._open_buffer()
        self._members = Members([], Drawing(), [])  # one of its slots may be another one now
        self._cache.copy_pages(sequence.copies, buffer.send)
        buffer.send_into(self._slots.words[sequence.slot], self._slots.words_of(sequence))
        self._held[sequence.slot] = Held.of(sequence.sampling_row())

    @torch.inference_mode()
    def launch(self, rows: Rows[Row]) -> Read:
        decoding = [row for row in rows if row.decodes]
        prompts = [row for row in rows if not row.decodes]
        replay = self._prepared(decoding)
        buffer, reads = self._open_buffer(), list[Read]()
        try:
            prefilled = self._prefill(prompts, buffer) if prompts else None
            if replay is not None:
                reads.append(self._decode(decoding, replay, buffer))
            if prefilled is not None:
                reads.append(self._settle(prefilled, buffer))
        except BaseException:
            self._free_buffers.append(buffer)  # nobody will read it
            raise
        finally:
            buffer.close()
            self._buffer = None
        return partial(self._read, buffer, reads)

    def _read(self, buffer: StagingBuffer, reads: list[Read]) -> list[Reading]:
        buffer.wait()
        readings = [reading for read in reads for reading in read()]
        self._free_buffers.append(buffer)
        return readings

    def _open_buffer(self) -> StagingBuffer:
        """The staging buffer of the step under launch; a third is made only if a step has several parts."""
        if self._buffer is None:
            free = self._free_buffers
            self._buffer = free.popleft() if free else StagingBuffer(self._device, self._cache.device)
            self._buffer.open()
        return self._buffer

    def _prepared(self, rows: list[Row]) -> Replay | None:
        """The graph for these rows. It may be captured now: if that fails, nothing has begun."""
        slots = [row.sequence.slot for row in rows]
        if slots != self._members.slots:
            held = [self._held[slot] for slot in slots]
            drawing = reduce(or_, (one.drawing for one in held), Drawing())
            apart = [number for number, one in enumerate(held) if one.is_apart]
            self._members = Members(slots, drawing, apart)
        return self.graphs.prepared(len(rows), self._members.drawing) if rows else None

    def _decode(self, rows: list[Row], replay: Replay, buffer: StagingBuffer) -> Read:
        """Launch the graph, and draw again what is to be drawn apart."""
        self.graphs.show(self._members.slots, buffer)
        replay()
        apart = [number for number in self._members.apart if is_apart(rows[number].sequence.sampling_row())]
        told = None
        if apart:
            try:
                told = self._draw_apart(apart, [rows[number] for number in apart], buffer)
            except BaseException:
                self.graphs.undo(len(rows))
                raise
        return partial(_read, rows, {}, buffer.land(self.graphs.drawn[: len(rows)]), told)

    def _draw_apart(self, numbers: list[int], rows: list[Row], buffer: StagingBuffer) -> Told | None:
        picked = buffer.send(numbers)
        slot_rows = self.graphs.rows(picked)
        _, ids, told = self._drawn(self.graphs.logits[picked], slot_rows, rows, buffer)
        self._slots.settle(slot_rows, slot_rows.next_positions, ids)
        self.graphs.drawn[picked] = ids
        return told and told.numbered(numbers)

    def _drawn(self, logits: Tensor, slot_rows: SlotRows, rows: list[Row], buffer: StagingBuffer) -> Drawn:
        """The next tokens by logits (R, V). Changes no slot."""
        drawing = reduce(or_, (self._held[row.sequence.slot].drawing for row in rows))
        sampled = [row.sequence.sampling_row() for row in rows]
        ruled = apply_rules(logits, sampled, buffer.send, slot_rows)
        ids = drawn(ruled.drawn, slot_rows, drawing)
        told = Told.if_any(ruled.told, ids, sampled, buffer.send)
        return Drawn(slot_rows, ids, told and told.each(buffer.land))

    def _prefill(self, rows: list[Row], buffer: StagingBuffer) -> Prefilled:
        """Compute prompts, and draw for those that are complete; no slot is changed yet."""
        chunks = [chunk_of(row) for row in rows]
        batch = Batch.from_chunks(chunks, self._cache.device, self._llama.tiling.span_tokens, buffer.send)
        logits = self._llama.forward(batch, self._cache, self.on_layer)  # (R, V)
        last, scores = split_logits(rows, logits, buffer.send)
        landing = {number: one.each(buffer.land) for number, one in scores.items()}
        complete = [row for row in rows if row.is_complete]
        if not complete:
            return Prefilled(rows, landing, None)
        slot_rows = self._slots.rows(buffer.send([row.sequence.slot for row in complete]))
        return Prefilled(rows, landing, self._drawn(last, slot_rows, complete, buffer))

    def _settle(self, prefilled: Prefilled, buffer: StagingBuffer) -> Read:
        """Put the drawn tokens into their slots."""
        rows, scores, found = prefilled
        if found is None:
            return partial(readings_of, rows, scores, [])
        self._slots.settle(found.slot_rows, found.slot_rows.next_positions, found.ids)
        return partial(_read, rows, scores, buffer.land(found.ids), found.told)


def _read(rows: list[Row], scores: dict[int, Scores], ids: Tensor, told: Told | None) -> list[Reading]:
    """By what has reached the host."""
    return readings_of(rows, scores, sampled_tokens(ids, told))
