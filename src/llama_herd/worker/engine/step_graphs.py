"""StepGraphs: a step as two captured graphs, the forward of its tokens and the draw of its rows.

Letters: B rows of a bucket, Q prompt tokens of a bucket, N spans, C hidden size, V vocabulary.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import accumulate, product
from time import perf_counter
from typing import TypeAlias

import structlog
import torch
from torch import Tensor

from llama_herd.model.cache import Cache
from llama_herd.model.config import LlamaConfig
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.device_error import is_lack_of_memory, raise_if_lost
from llama_herd.worker.engine.graph_device import GraphDevice, Replay
from llama_herd.worker.engine.prefill import TOKENS, Prefill, PromptSpan, num_spans
from llama_herd.worker.engine.prefill_budget import ForwardCosts
from llama_herd.worker.engine.sampling.row import NO_TOKEN, SamplingRow
from llama_herd.worker.engine.sampling.rules import apply_in_slots
from llama_herd.worker.engine.sampling.sampler import Drawing, drawn
from llama_herd.worker.engine.slots import POSITION, TOKEN, TRASH_POSITION, SlotRows, Slots
from llama_herd.worker.engine.staging_buffer import StagingBuffer

log = structlog.get_logger(__name__)

#: Rows of a graph; above the last one in steps of 64. Fewer rows are filled up with rows of the trash slot,
#: which belongs to no sequence. Beside prompts a row more costs little, so there are few sizes.
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
ROWS_BESIDE = (16, 64, 128, 256)

#: Names a graph: its rows, and its prompt tokens or the way in which it draws.
Key: TypeAlias = tuple[int, int | Drawing]

#: The least that a forward's prompts are taken to cost.
LEAST_S = 1e-6

#: The draw that takes the most memory.
EVERYTHING = Drawing(is_random=True, is_sorted=True, is_ruled=True)
#: Those of jobs that say nothing of sampling, and of greedy ones.
USUAL = (Drawing.of(SamplingRow(SamplingParams(), seed=0)), Drawing())


def bucket_of(num_rows: int, buckets: tuple[int, ...] = ROWS) -> int:
    """Return the number of rows of the captured graph that computes so many; of none there is nothing."""
    if num_rows > buckets[-1]:
        return -(-num_rows // 64) * 64
    return buckets[bisect_left(buckets, num_rows)] if num_rows else 0


class StepGraphs:
    """Graphs are captured when they are first needed. What goes in and out lies in tensors that all share."""

    def __init__(self, llama: Llama, cache: Cache, slots: Slots, device: GraphDevice, num_rows: int) -> None:
        self._llama = llama
        self._cache = cache
        self._slots = slots
        self._device = device
        self._replays: dict[Key, Replay] = {}
        self._shown: list[int] = []  # the slots that `_index` names
        self._most = bucket_of(num_rows)
        place, config = cache.device, llama.config
        self._index = torch.full((self._most,), slots.trash, device=place)  # (B,)
        self._fields = torch.zeros_like(slots.rows(self._index).fields)  # (B, fields)
        self._spans = torch.zeros(4 * num_spans(TOKENS[-1]), dtype=torch.int64, device=place)  # (4 * N,)
        #: What the last step has found: what is behind the last layer (B + Q, C), the logits (B, V) and the
        #: drawn ids (B,).
        hidden = (self._most + TOKENS[-1], config.hidden_size)
        self.hidden = torch.zeros(hidden, dtype=cache.storage.dtype, device=place)
        self.logits = torch.zeros(self._most, config.vocab_size, device=place)
        self.drawn = torch.zeros(self._most, dtype=torch.int64, device=place)
        #: Why nothing is captured any more; empty while it is.
        self.complaint = ""

    @staticmethod
    def num_bytes(num_rows: int, config: LlamaConfig, item_bytes: int) -> int:
        """Return the bytes of the tensors that all graphs share, but for some KB."""
        most = bucket_of(num_rows)
        hidden = (most + TOKENS[-1]) * config.hidden_size * item_bytes
        return hidden + most * config.vocab_size * torch.float32.itemsize

    def check(self) -> str:
        """Replay steps of trash beside the same steps computed kernel by kernel; why they differ, if so."""
        # The largest graphs first: all others fit into their memory. Captured as they are needed, each larger
        # one would take more beside what smaller ones have left.
        self._prepare(partial(self.forward, self._most, TOKENS[-1]))
        self._prepare(partial(self.draw, self._most, EVERYTHING))
        prompt = Prefill.of([PromptSpan(self._slots.trash, start=TRASH_POSITION + 1, num_tokens=3)])
        for prefill, drawing in product((Prefill.of([]), prompt), (Drawing(), EVERYTHING)):
            rows = self.rows_of(1, prefill.bucket)
            work = partial(self._forward, rows, prefill.bucket), partial(self._draw, 1, drawing)
            replayed = self._found_by(prefill, self.forward(1, prefill.bucket), self.draw(1, drawing))
            if not self.complaint and not all(map(torch.allclose, replayed, self._found_by(prefill, *work))):
                self.complaint = "a replayed step differs from the same step computed kernel by kernel"
        return self.complaint

    def capture_usual(self, note: Callable[[int, int], None]) -> None:
        """Capture all steps with the usual draws: in traffic all streams would stand meanwhile.

        `note(done, total)` is told how far it is.
        """
        sizes = sorted({bucket_of(num_rows) for num_rows in range(1, self._most + 1)})
        beside = sorted({self.rows_of(num_rows, TOKENS[0]) for num_rows in sizes})
        steps = [*product(sizes, (0,)), *product(beside, TOKENS)]
        graphs = [partial(self.forward, *step) for step in steps]
        graphs += [partial(self.draw, *key) for key in product(sizes, USUAL)]
        for num_done, graph in enumerate(graphs, start=1):
            self._prepare(graph)
            note(num_done, len(graphs))

    def costs(self) -> ForwardCosts | None:
        """What the usual forwards take, rows of trash beside prompts there.

        None if memory was lacking for one of them.
        """
        sizes = [(1, 0), *((self._most, num_tokens) for num_tokens in (0, *TOKENS))]
        if not all((self.rows_of(*size), size[1]) in self._replays for size in sizes):
            return None
        # Equal tokens would take less than real ones.
        trash, length = self._slots.trash, self._cache.max_length - TRASH_POSITION - 1
        self._slots.rows(self._index).ids_of_slots[trash].random_(self._llama.config.vocab_size)
        row_s, rows_s = (self._timed_s(num_rows, Prefill.of([])) for num_rows in (1, self._most))
        beside_s = (
            self._timed_s(self._most, Prefill.full(PromptSpan(trash, TRASH_POSITION + 1, length), num_tokens))
            for num_tokens in TOKENS
        )
        # Of a tiny model the clock is not fine enough: never nothing, and never less for more.
        prompts_s = accumulate((max(LEAST_S, seconds - rows_s) for seconds in beside_s), max)
        return ForwardCosts(row_s, dict(zip(TOKENS, prompts_s, strict=True)))

    def _timed_s(self, num_rows: int, prefill: Prefill) -> float:
        """What a forward takes: the shorter of two."""
        forward, event, times_s = self.forward(num_rows, prefill.bucket), self._device.event(), list[float]()
        self._show_trash(prefill)
        for _ in range(2):
            event.record()
            event.synchronize()
            started_s = perf_counter()
            forward()
            event.record()
            event.synchronize()
            times_s.append(perf_counter() - started_s)
        return min(times_s)

    def _prepare(self, graph: Callable[[], Replay]) -> None:
        """Capture a graph, as far as there is memory for it."""
        try:
            graph()
        except Exception as error:
            if not is_lack_of_memory(error):
                raise
            log.warning("memory is lacking for a step, it will be computed in parts")

    def _found_by(self, prefill: Prefill, *work: Replay) -> tuple[Tensor, ...]:
        """What a step of one row of trash and of a prompt there finds: the row's, and the prompt's."""
        self._show_trash(prefill)
        self._slots.words[self._slots.trash, TOKEN] = 1
        self.hidden.fill_(torch.nan)
        self.logits.fill_(torch.nan)
        self.drawn.fill_(NO_TOKEN)
        for part in work:
            part()
        return self.logits[:1].clone(), self.drawn[:1].clone(), self.hidden_of_prompts(1, prefill).clone()

    def rows_of(self, num_rows: int, num_tokens: int) -> int:
        """Rows of the captured forward that computes so many beside so many prompt tokens."""
        return min(bucket_of(num_rows, ROWS_BESIDE if num_tokens else ROWS), self._most)

    def hidden_of_prompts(self, num_rows: int, prefill: Prefill) -> Tensor:
        """What the last forward has found for prompt tokens beside so many rows: (Q, C)."""
        first = self.rows_of(num_rows, prefill.bucket)
        return self.hidden[first : first + prefill.num_tokens]

    def forward(self, num_rows: int, num_tokens: int) -> Replay:
        """Return the replay of the layers for so many rows, and for prompt tokens as many as a bucket has.

        Its graph is captured now if it never was.
        """
        num_rows = self.rows_of(num_rows, num_tokens)
        work = partial(self._forward, num_rows, num_tokens)
        return self._replay((num_rows, num_tokens), work, num_tokens)

    def draw(self, num_rows: int, drawing: Drawing) -> Replay:
        """Return the replay of head and draw of the rows of the last forward, captured in the same way."""
        num_rows = bucket_of(num_rows)
        return self._replay((num_rows, drawing), partial(self._draw, num_rows, drawing))

    def show_rows(self, slots: list[int], buffer: StagingBuffer) -> None:
        """Let the next step compute these slots; nothing is sent if they are those of the step before."""
        if slots != self._shown:
            num_trash = self.rows_of(len(slots), TOKENS[0]) - len(slots)
            buffer.send_into(self._index, slots + [self._slots.trash] * num_trash)
            self._shown = slots

    def show_prompts(self, prefill: Prefill, buffer: StagingBuffer) -> None:
        """Let the next forward compute these tokens."""
        if prefill.spans:
            buffer.send_into(self._spans, prefill.words(self._slots.trash))

    def rows(self, places: Tensor | slice) -> SlotRows:
        """The given rows of the last step, as they were before their tokens were drawn."""
        return self._slots.rows(self._index[places], self._fields[places])

    def undo(self, num_rows: int) -> None:
        """Take back what the last step has done to its slots."""
        rows = self.rows(slice(num_rows))
        self._slots.settle(rows, rows.integers(POSITION), rows.integers(TOKEN))

    def _replay(self, key: Key, work: Callable[[], None], num_tokens: int = 0) -> Replay:
        if key not in self._replays:
            self._replays[key] = self._captured(work, num_tokens)
        return self._replays[key]

    def _show_trash(self, prefill: Prefill) -> None:
        """Let the next step compute nothing but trash, and this prefill."""
        self._index.fill_(self._slots.trash)
        self._fields[:] = self._slots.rows(self._index).fields
        self._shown = []
        words = prefill.words(self._slots.trash)
        self._spans[: len(words)] = torch.tensor(words)

    def _captured(self, work: Callable[[], None], num_tokens: int) -> Replay:
        """Capturing computes rows of trash. What cannot be captured is computed kernel by kernel."""
        if self.complaint:
            return work
        self._show_trash(Prefill((), 0, num_tokens))
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
    def _forward(self, num_rows: int, num_tokens: int) -> None:
        """The layers, as they are captured: from slots and cache to cache and `hidden`."""
        rows = self._slots.rows(self._index[:num_rows])
        self._fields[:num_rows] = rows.fields
        spans = self._spans[: 4 * num_spans(num_tokens)].view(4, -1)
        batch = self._slots.batch(rows, spans if num_tokens else None, num_tokens)
        self.hidden[: num_rows + num_tokens] = self._llama.hidden(batch, self._cache)

    @torch.inference_mode()
    def _draw(self, num_rows: int, drawing: Drawing) -> None:
        """Head and draw, as they are captured: from `hidden` to slots."""
        rows = self.rows(slice(num_rows))
        logits = self._llama.logits(self.hidden[:num_rows])  # (B, V)
        self.logits[:num_rows] = logits
        if drawing.is_ruled:
            logits = apply_in_slots(logits, rows)
        ids = drawn(logits, rows, drawing)
        self._slots.settle(rows, rows.next_positions, ids)
        self.drawn[:num_rows] = ids
