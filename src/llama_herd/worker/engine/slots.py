"""Slots: what the device knows of each running sequence, so that a step needs nothing from the host.

Letters: N slots or spans, B rows of a step, Q prompt tokens of it, W words of a slot, P pages of a sequence,
S longest sequence.
"""

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Seen, SeenSpans
from llama_herd.model.batch import StepBatch
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.worker.engine.prefill import SPAN_TOKENS
from llama_herd.worker.engine.sampling.noise import hash_prefix
from llama_herd.worker.engine.sampling.parameters import PARAMETERS, Parameter
from llama_herd.worker.engine.sequence import Sequence

#: The words of a slot: these, the job's parameters, its pages, its ids. A word is an int64; a parameter's
#: is the bits of a float64.
TOKEN, POSITION, LAST, NUM_PROMPT, HASH = range(5)
WORD_OF = {one.field: number for number, one in enumerate(PARAMETERS, start=5)}
NUM_FIELDS = 5 + len(PARAMETERS)

#: Where tokens stand that only fill a batch up; a row that does stands at 0.
TRASH_POSITION = 1


class Slots:
    """A table on the device, one row of words a slot.

    TOKEN is the last one of the sequence and stands at POSITION; each draw puts the next one in its place.
    The slot after the last one is trash: rows that only fill a batch up read and write it.
    """

    def __init__(self, num_slots: int, max_length: int, trash_page: int, device: torch.device) -> None:
        self.trash = num_slots
        self._trash_page = trash_page
        self._num_pages = pages_for(max_length)
        self._width = NUM_FIELDS + self._num_pages + max_length
        self.words = torch.zeros(num_slots + 1, self._width, dtype=torch.int64, device=device)  # (N, W)
        self._reals = self.words.view(torch.float64)
        self._flat = self.words.view(-1)
        self._pages = self.words[:, NUM_FIELDS : NUM_FIELDS + self._num_pages]  # (N, P)
        self._ids = self.words[:, NUM_FIELDS + self._num_pages :]  # (N, S)
        self._pages[self.trash] = trash_page
        for parameter in PARAMETERS:
            self._reals[self.trash, WORD_OF[parameter.field]] = parameter.off

    @staticmethod
    def num_bytes(num_slots: int, max_length: int) -> int:
        return 8 * (num_slots + 1) * (NUM_FIELDS + pages_for(max_length) + max_length)

    def words_of(self, sequence: Sequence) -> "array[int]":
        """Return the words of a slot for a sequence that begins: parameters, pages, and its ids so far."""
        params, length = sequence.params, sequence.length
        ids = sequence.tokens(0, length)
        prefix = hash_prefix(sequence.seed, sequence.choice)
        at = (ids[-1], length - 1, sequence.num_reserved - 1, len(sequence.prompt_ids))
        words = array("q", (*at, prefix))
        words.frombytes(array("d", [one.value_in(params) for one in PARAMETERS]).tobytes())
        words.extend(sequence.pages)
        words.extend([self._trash_page] * (self._num_pages - len(sequence.pages)))
        words.extend(ids)
        return words

    def rows(self, slots: Tensor, fields: Tensor | None = None) -> "SlotRows":
        """Rows of these slots (B,), by their fields as they are now, or as they were."""
        return SlotRows(slots, self.words[slots, :NUM_FIELDS] if fields is None else fields, self._ids)

    def batch(self, rows: "SlotRows", spans: Tensor | None = None, num_tokens: int = 0) -> StepBatch:
        """The last token of each row, then `num_tokens` tokens of prompts by their spans (4, N)."""
        ids, positions, slots = rows.integers(TOKEN), rows.integers(POSITION), rows.slots
        prompts = None
        if spans is not None:
            first, counts, starts, owners = spans
            numbers = torch.arange(num_tokens, device=spans.device)  # (Q,)
            span = (numbers[:, None] >= first).sum(dim=-1) - 1  # the last one that begins there or before
            ahead = numbers - first[span]
            at = torch.where(ahead < counts[span], starts[span] + ahead, TRASH_POSITION)
            ids = torch.cat((ids, self._ids[owners[span], at]))  # (B + Q,)
            positions, slots = torch.cat((positions, at)), torch.cat((slots, owners[span]))
            seen = Seen(len(rows.slots) + first, starts + 1, self._table_of(owners), self._flat)
            prompts = SeenSpans(seen, counts, SPAN_TOKENS)
        tables = self._table_of(slots)
        pages = self._flat[tables + positions // PAGE_TOKENS]
        cells = pages * PAGE_TOKENS + positions % PAGE_TOKENS
        return StepBatch(
            ids, positions, cells, slots, tables, self._flat, self._pages, len(rows.slots), prompts
        )

    def _table_of(self, slots: Tensor) -> Tensor:
        """Where among all words the page table of each slot begins."""
        return slots * self._width + NUM_FIELDS

    def settle(self, rows: "SlotRows", positions: Tensor, ids: Tensor) -> None:
        """Append drawn ids (B,) to their sequences, at `positions`; one that is no token becomes token 0."""
        tokens = ids.clamp(min=0)
        cells = rows.slots * self._width
        self._flat.index_copy_(0, cells + TOKEN, tokens)
        self._flat.index_copy_(0, cells + POSITION, positions)
        self._flat.index_copy_(0, cells + NUM_FIELDS + self._num_pages + positions, tokens)


@dataclass(frozen=True, eq=False)
class SlotRows:
    """Rows of a step: their slots (B,), the fields of these (B, NUM_FIELDS), the ids of all slots (N, S)."""

    slots: Tensor
    fields: Tensor
    ids_of_slots: Tensor

    @property
    def ids(self) -> Tensor:
        """The ids of each row (B, S); what is behind a sequence's last token is any token."""
        return self.ids_of_slots[self.slots]

    def integers(self, field: int) -> Tensor:
        """Return an integer field of each row: (B,)."""
        return self.fields[:, field]

    def exact(self, field: str) -> Tensor:
        """Return a parameter of each row, exactly: (B, 1) float64."""
        return self.fields.view(torch.float64)[:, WORD_OF[field], None]

    def column(self, field: str) -> Tensor:
        """Return a parameter of each row: (B, 1) float32."""
        return self.exact(field).float()

    def numbers(self, parameter: Parameter) -> Tensor:
        """Return a parameter of each row (B, 1): a captured step applies every one, whatever its value."""
        return self.column(parameter.field)

    @property
    def next_positions(self) -> Tensor:
        """The positions of the next tokens (B,): never behind the pages, also for rows that have ended."""
        return torch.minimum(self.integers(POSITION) + 1, self.integers(LAST))
