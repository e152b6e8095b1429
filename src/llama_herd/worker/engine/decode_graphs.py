"""DecodeGraphs: one token more for each of some slots, as one captured graph for each number of rows.

Letters: B rows of a bucket, V vocabulary.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import structlog
import torch
from torch import Tensor

from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.device_error import is_lack_of_memory, raise_if_lost
from llama_herd.worker.engine.graph_device import GraphDevice, Replay
from llama_herd.worker.engine.sampling.row import NO_TOKEN, SamplingRow
from llama_herd.worker.engine.sampling.rules import apply_in_slots
from llama_herd.worker.engine.sampling.sampler import Drawing, drawn
from llama_herd.worker.engine.slots import POSITION, TOKEN, SlotRows, Slots
from llama_herd.worker.engine.staging_buffer import StagingBuffer

log = structlog.get_logger(__name__)

#: Rows of a graph; above the last one in steps of 64. Fewer rows are filled up with rows of the trash slot,
#: which belongs to no sequence.
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)

#: The draw that takes the most memory.
EVERYTHING = Drawing(is_random=True, is_sorted=True, is_ruled=True)
#: Those of jobs that say nothing of sampling, and of greedy ones.
USUAL = (Drawing.of(SamplingRow(SamplingParams(), seed=0)), Drawing())


def bucket_of(num_rows: int) -> int:
    """Return the number of rows of the captured graph that computes a step of so many rows."""
    if num_rows <= BUCKETS[-1]:
        return BUCKETS[bisect_left(BUCKETS, num_rows)]
    return -(-num_rows // 64) * 64


class DecodeGraphs:
    """Graphs are captured when they are first needed. What goes in and out lies in tensors that all share."""

    def __init__(self, llama: Llama, cache: Cache, slots: Slots, device: GraphDevice, num_rows: int) -> None:
        self._llama = llama
        self._cache = cache
        self._slots = slots
        self._device = device
        self._replays: dict[tuple[int, Drawing], Replay] = {}
        self._shown: list[int] = []  # the slots that `_index` names
        place, most = cache.device, bucket_of(num_rows)
        self._index = torch.full((most,), slots.trash, device=place)  # (B,)
        self._fields = torch.zeros_like(slots.rows(self._index).fields)  # (B, fields)
        #: What the last step has found: the model's logits (B, V), and the drawn ids (B,).
        self.logits = torch.zeros(most, llama.config.vocab_size, device=place)
        self.drawn = torch.zeros(most, dtype=torch.int64, device=place)
        #: Why nothing is captured any more; empty while it is.
        self.complaint = ""

    @staticmethod
    def num_bytes(num_rows: int, vocab_size: int) -> int:
        """Return the bytes of the tensors that all graphs share, but for some KB."""
        return bucket_of(num_rows) * vocab_size * torch.float32.itemsize

    def check(self) -> str:
        """Replay a step of trash beside the same step computed kernel by kernel; why they differ, if so."""
        # The largest graph first: all others fit into its memory. Captured as rows come, each larger one
        # would take more beside what smaller ones have left.
        self._prepare(len(self.drawn), EVERYTHING)
        for drawing in (Drawing(), EVERYTHING):
            replayed = self._found_by(self.prepared(1, drawing))
            computed = self._found_by(partial(self._compute, 1, drawing))
            if not self.complaint and not all(map(torch.allclose, replayed, computed)):
                self.complaint = "a replayed step differs from the same step computed kernel by kernel"
        return self.complaint

    def capture_usual(self, note: Callable[[int, int], None]) -> None:
        """Capture each number of rows for the usual draws: in traffic all streams would stand meanwhile.

        `note(done, total)` is told how far it is.
        """
        sizes = {bucket_of(num_rows) for num_rows in range(1, len(self.drawn) + 1)}
        keys = [(num_rows, drawing) for num_rows in sorted(sizes) for drawing in USUAL]
        for num_done, key in enumerate(keys, start=1):
            self._prepare(*key)
            note(num_done, len(keys))

    def _prepare(self, num_rows: int, drawing: Drawing) -> None:
        """Capture a step, as far as there is memory for it."""
        try:
            self.prepared(num_rows, drawing)
        except Exception as error:
            if not is_lack_of_memory(error):
                raise
            log.warning("memory is lacking for a step, it will be computed in parts", rows=num_rows)

    def _found_by(self, step: Replay) -> tuple[Tensor, Tensor]:
        """The logits and the id of a step of one row of trash."""
        self._index.fill_(self._slots.trash)
        self._shown = []
        self._slots.words[self._slots.trash, TOKEN] = 1
        self.logits.fill_(torch.nan)
        self.drawn.fill_(NO_TOKEN)
        step()
        return self.logits[:1].clone(), self.drawn[:1].clone()

    def prepared(self, num_rows: int, drawing: Drawing) -> Replay:
        """Return the replay of a step of so many rows; its graph is captured now if it never was."""
        key = (bucket_of(num_rows), drawing)
        if key not in self._replays:
            self._replays[key] = self._captured(*key)
        return self._replays[key]

    def show(self, slots: list[int], buffer: StagingBuffer) -> None:
        """Let the next step compute these slots; nothing is sent if they are those of the step before."""
        if slots != self._shown:
            num_trash = bucket_of(len(slots)) - len(slots)
            buffer.send_into(self._index, slots + [self._slots.trash] * num_trash)
            self._shown = slots

    def rows(self, places: Tensor) -> SlotRows:
        """The given rows of the last step, as they were before their tokens were drawn."""
        return self._slots.rows(self._index[places], self._fields[places])

    def undo(self, num_rows: int) -> None:
        """Take back what the last step has done to its slots."""
        rows = self._slots.rows(self._index[:num_rows], self._fields[:num_rows])
        self._slots.settle(rows, rows.integers(POSITION), rows.integers(TOKEN))

    def _captured(self, num_rows: int, drawing: Drawing) -> Replay:
        """Capturing computes rows of trash. What cannot be captured is computed kernel by kernel."""
        work = partial(self._compute, num_rows, drawing)
        if self.complaint:
            return work
        self._index.fill_(self._slots.trash)
        self._shown = []
        try:
            return self._device.capture(work)
        except Exception as error:
            raise_if_lost(error)
            if is_lack_of_memory(error):
                raise
            self.complaint = f"{type(error).__name__}: {error}".splitlines()[0]
            log.exception("a step cannot be captured, from now on it is launched kernel by kernel")
            return work

    @torch.inference_mode()
    def _compute(self, num_rows: int, drawing: Drawing) -> None:
        """The step that is captured: from slots to slots."""
        slots, rows = self._slots, self._slots.rows(self._index[:num_rows])
        self._fields[:num_rows] = rows.fields
        logits = self._llama.forward(slots.batch(rows), self._cache)  # (B, V)
        self.logits[:num_rows] = logits
        if drawing.is_ruled:
            logits = apply_in_slots(logits, rows)
        ids = drawn(logits, rows, drawing)
        slots.settle(rows, rows.next_positions, ids)
        self.drawn[:num_rows] = ids
