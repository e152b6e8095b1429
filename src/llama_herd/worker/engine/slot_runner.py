"""SlotRunner: launches a step before the one before was read, on a device that works on its own time.

Letters: R rows of logits, V vocabulary.
"""

from array import array
from collections import deque
from collections.abc import Callable, Sequence as Rows
from functools import partial, reduce
from itertools import accumulate
from operator import or_
from typing import NamedTuple, Self

import torch
from torch import Tensor

from llama_herd.model.batch import Batch
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.protocol.sampling import MAX_TOP_LOGPROBS
from llama_herd.worker.engine.decode_graphs import DecodeGraphs
from llama_herd.worker.engine.graph_device import GraphDevice, Replay
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.runner import Read, Reading, chunk_of
from llama_herd.worker.engine.sampling.masks import masks_for, unpacked_there
from llama_herd.worker.engine.sampling.parameters import MINUS_INFINITY
from llama_herd.worker.engine.sampling.row import SamplingRow
from llama_herd.worker.engine.sampling.rules import Rules
from llama_herd.worker.engine.sampling.scores import Scores, with_top
from llama_herd.worker.engine.sampling.slot_sampler import Drawing, drawn, penalised
from llama_herd.worker.engine.scheduler import Row
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.slots import SlotRows, Slots
from llama_herd.worker.engine.staging_buffer import StagingBuffer


class Held(NamedTuple):
    """A slot's facts on the host: how its tokens are drawn, by which rules, and whether outside the graph."""

    drawing: Drawing
    rules: Rules | None
    is_apart: bool  # whether it is drawn after the graph, at least at first

    @classmethod
    def of(cls, sequence: Sequence, buffer: StagingBuffer) -> Self:
        rules = Rules.if_any(sequence, buffer.send)
        is_apart = rules is not None or sequence.params.logprobs or sequence.constraint is not None
        return cls(Drawing.from_params(sequence.params), rules, is_apart)


class Members(NamedTuple):
    """The rows that decode, as long as they stay the same."""

    slots: list[int]
    drawing: Drawing
    apart: list[int]  # numbers of the rows that are drawn after the graph, at least at first


class Scored(NamedTuple):
    """Scores of some rows that are on their way, by the numbers of these rows."""

    numbers: list[int]
    scores: Scores


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
        self._held[sequence.slot] = Held.of(sequence, buffer)

    @torch.inference_mode()
    def launch(self, rows: Rows[Row]) -> Read:
        decoding = [row for row in rows if row.is_complete and row.num_tokens == 1]
        prompts = [row for row in rows if not (row.is_complete and row.num_tokens == 1)]
        replay = self._prepared(decoding)
        buffer, reads = self._open_buffer(), list[Read]()
        try:
            prefilled = self._prefill(prompts, buffer) if prompts else None
            if replay is not None:
                reads.append(self._decode(decoding, replay, buffer))
            if prefilled is not None:
                reads.append(prefilled.settle(self._slots, buffer))
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
        apart = [number for number in self._members.apart if self._is_apart(rows[number].sequence)]
        scored = None
        if apart:
            try:
                scored = self._draw_apart(apart, [rows[number] for number in apart], buffer)
            except BaseException:
                self.graphs.undo(len(rows))
                raise
        ids = buffer.land(self.graphs.drawn[: len(rows)])
        return partial(_decoded, rows, ids, scored)

    def _is_apart(self, sequence: Sequence) -> bool:
        rules = self._held[sequence.slot].rules
        is_ruled = sequence.constraint is not None or (rules is not None and rules.hold(sequence))
        return sequence.params.logprobs or is_ruled

    def _draw_apart(self, numbers: list[int], rows: list[Row], buffer: StagingBuffer) -> Scored | None:
        picked = buffer.send(numbers)
        slot_rows = self.graphs.rows(picked)
        ids, scored = self._drawn(self.graphs.logits[picked], slot_rows, rows, buffer)
        self._slots.settle(slot_rows, slot_rows.next_positions, ids)
        self.graphs.drawn[picked] = ids
        return scored and Scored([numbers[number] for number in scored.numbers], scored.scores)

    def _drawn(
        self, logits: Tensor, slot_rows: SlotRows, rows: list[Row], buffer: StagingBuffer
    ) -> tuple[Tensor, Scored | None]:
        """The next tokens by logits (R, V), and the scores of those who asked. Changes no slot."""
        held = [self._held[row.sequence.slot] for row in rows]
        drawing = reduce(or_, (one.drawing for one in held))
        logits = _constrained(logits, [row.sequence.sampling_row() for row in rows], buffer)
        ruled = penalised(logits, self._slots, slot_rows) if drawing.is_penalised else logits.clone()
        for number, (row, one) in enumerate(zip(rows, held, strict=True)):
            if one.rules is not None:
                one.rules.apply(ruled[number], row.sequence)
        ids = drawn(ruled, slot_rows, drawing)
        numbers = [number for number, row in enumerate(rows) if row.sequence.params.logprobs]
        if not numbers:
            return ids, None
        picked = buffer.send(numbers)
        scores = Scores.from_logits(logits[picked], ids[picked], MAX_TOP_LOGPROBS)
        return ids, Scored(numbers, scores.each(buffer.land))

    def _prefill(self, rows: list[Row], buffer: StagingBuffer) -> "Prefilled":
        """Compute prompts, and draw for those that are complete; no slot is changed yet."""
        chunks = [chunk_of(row) for row in rows]
        batch = Batch.from_chunks(chunks, self._cache.device, self._llama.tiling.span_tokens, buffer.send)
        logits = self._llama.forward(batch, self._cache, self.on_layer)  # (R, V)
        stops = list(accumulate(row.num_logits for row in rows))
        prompt_scores = {
            number: _prompt_scores(row, logits[stop - row.num_logits : stop], buffer)
            for number, (row, stop) in enumerate(zip(rows, stops, strict=True))
            if row.num_scores
        }
        complete = [number for number, row in enumerate(rows) if row.is_complete]
        if not complete:
            return Prefilled(rows, complete, None, None, None, prompt_scores)
        slot_rows = self._slots.rows(buffer.send([rows[number].sequence.slot for number in complete]))
        last = logits[buffer.send([stops[number] - 1 for number in complete])]
        ids, scored = self._drawn(last, slot_rows, [rows[number] for number in complete], buffer)
        return Prefilled(rows, complete, slot_rows, ids, scored, prompt_scores)


def _constrained(logits: Tensor, rows: Rows[SamplingRow], buffer: StagingBuffer) -> Tensor:
    """Minus infinity for each token that a row's constraint does not let follow: (R, V), a copy if any."""
    numbers = [number for number, row in enumerate(rows) if row.constraint is not None]
    if not numbers:
        return logits
    masks = masks_for([rows[number] for number in numbers])
    sent = buffer.send(array("q", masks.tobytes())).view(masks.shape)
    picked = buffer.send(numbers)
    allowed = logits[picked].masked_fill(~unpacked_there(sent, logits.shape[-1]), MINUS_INFINITY)
    return logits.index_copy(0, picked, allowed)


class Prefilled(NamedTuple):
    """A launched prefill: its rows, and the tokens that the rows with a complete prompt have drawn."""

    rows: list[Row]
    complete: list[int]
    slot_rows: SlotRows | None
    ids: Tensor | None
    scored: Scored | None
    prompt_scores: dict[int, Scores]

    def settle(self, slots: Slots, buffer: StagingBuffer) -> Read:
        """Put the drawn tokens into their slots."""
        ids = None
        if self.slot_rows is not None and self.ids is not None:
            slots.settle(self.slot_rows, self.slot_rows.next_positions, self.ids)
            ids = buffer.land(self.ids)
        return partial(self._readings, ids)

    def _readings(self, ids: Tensor | None) -> list[Reading]:
        tokens = {} if ids is None else self._tokens(ids)
        return [
            Reading(row, self._scores_of(number, row), tokens.get(number))
            for number, row in enumerate(self.rows)
        ]

    def _tokens(self, ids: Tensor) -> dict[int, SampledToken]:
        rows = [self.rows[number] for number in self.complete]
        return dict(zip(self.complete, _tokens(ids, rows, self.scored), strict=True))

    def _scores_of(self, number: int, row: Row) -> list[SampledToken]:
        scores = self.prompt_scores.get(number)
        if scores is None:
            return []
        num_top = row.sequence.params.prompt_logprobs or 0
        return [with_top(token, num_top) for token in scores.tokens()]


def _decoded(rows: list[Row], ids: Tensor, scored: Scored | None) -> list[Reading]:
    return [Reading(row, [], token) for row, token in zip(rows, _tokens(ids, rows, scored), strict=True)]


def _tokens(ids: Tensor, rows: list[Row], scored: Scored | None) -> list[SampledToken]:
    """Sampled tokens of ids that have reached the host, with the scores of the rows that asked for them."""
    tokens = [SampledToken(token_id) for token_id in ids.tolist()]
    if scored is not None:
        for number, token in zip(scored.numbers, scored.scores.tokens(), strict=True):
            tokens[number] = with_top(token, rows[number].sequence.params.top_logprobs)
    return tokens


def _prompt_scores(row: Row, logits: Tensor, buffer: StagingBuffer) -> Scores:
    """The scores of the prompt tokens that follow a token of the row; on their way to the host."""
    scores = Scores.from_logits(logits[: row.num_scores], buffer.send(row.scored_ids), MAX_TOP_LOGPROBS)
    return scores.each(buffer.land)
