"""Texts through a model that writes none: the states that are wanted of them, many texts a step, no padding.

Shapes: N texts, R rows of a step whose states are wanted, C hidden size.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.errors import BadInput
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.prefix_cache import Digest, page_digest, root_digest

#: Most tokens of a step.
STEP_TOKENS = 512


class Text(NamedTuple):
    """A text's ids, and the positions whose states are wanted.

    What comes after the last of these is not computed: no state depends on it.
    """

    ids: Sequence[int]
    wanted: range
    num_shared: int = 0  # of its first tokens: what other texts begin with too, and may be kept for them

    @property
    def digests(self) -> list[Digest]:
        """The names of its pages that are shared; the states of their tokens are not wanted."""
        num_pages = min(self.num_shared, self.wanted.start) // PAGE_TOKENS
        digests = [root_digest("")]
        for page in range(num_pages):
            digests.append(page_digest(digests[-1], self.ids[page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS]))
        return digests[1:]


class States(NamedTuple):
    """States that were wanted: each row's text, by its number, and the state."""

    texts: Tensor  # (R,) int64
    states: Tensor  # (R, C), behind the last norm


class Means:
    """The mean of each text's wanted states, as they come, step by step.

    Sums are kept in float64: so they show neither the order of additions nor where a text was cut.
    """

    def __init__(self, texts: Sequence[Text], hidden_size: int, device: torch.device) -> None:
        self._sums = torch.zeros(len(texts), hidden_size, dtype=torch.float64, device=device)  # (N, C)
        self._counts = torch.tensor([len(text.wanted) for text in texts], device=device)  # (N,)

    def add(self, found: States) -> None:
        """Take the states of a step."""
        self._sums.index_add_(0, found.texts, found.states.double())

    @property
    def vectors(self) -> Tensor:
        """The means (N, C) in float32, once all states have come."""
        return (self._sums / self._counts.unsqueeze(-1)).float()


@dataclass(eq=False)
class _Row:
    """A text under way: its tokens before `start` are in the cache."""

    number: int
    text: Text
    pages: tuple[int, ...]
    digests: list[Digest]
    start: int

    @property
    def num_left(self) -> int:
        return self.text.wanted.stop - self.start

    def chunk(self, num_tokens: int) -> Chunk:
        stop = self.start + min(num_tokens, self.num_left)
        num_wanted = max(0, stop - max(self.start, self.text.wanted.start))
        return Chunk(self.pages, self.start, self.text.ids[self.start : stop], num_wanted)


@dataclass(eq=False)
class TextRun:
    """Some texts on their way through a model; a step takes as many as have room, whole or in part.

        for texts, states in TextRun(llama, cache, [Text(ids, range(len(ids)))]):
            ...

    A prompt that texts share is computed once. When the run ends, all pages are given back.
    """

    llama: Llama
    cache: Cache
    texts: Sequence[Text]
    step_tokens: int = STEP_TOKENS
    max_tokens: int | None = None  # of a text; None: as many as the cache takes
    name: str = "texts"  # what errors call them

    def __post_init__(self) -> None:
        """Raise BadInput for a text that is too long, or has no token whose state is wanted."""
        limit = min(self.max_tokens or self.cache.max_length, self.cache.max_length)
        for number, text in enumerate(self.texts):
            if not 0 <= text.wanted.start < text.wanted.stop <= len(text.ids):
                raise BadInput(f"{self.name}[{number}] has no token of its own. Leave it out.")
            if len(text.ids) > limit:
                problem = f"has {len(text.ids)} tokens, the limit here is {limit}"
                raise BadInput(f"{self.name}[{number}] {problem}. Cut it into parts.")

    @torch.inference_mode()
    def __iter__(self) -> Iterator[States]:
        waiting, rows = deque(enumerate(self.texts)), list[_Row]()
        try:
            while waiting or rows:
                self._admit(waiting, rows)
                yield self._step(rows)
                for row in [row for row in rows if not row.num_left]:
                    rows.remove(row)
                    self._release(row)
        finally:
            for row in rows:
                self._release(row)

    def _admit(self, waiting: deque[tuple[int, Text]], rows: list[_Row]) -> None:
        """Take texts in, in their order, while the next step has tokens and the cache has pages for them."""
        while waiting and sum(row.num_left for row in rows) < self.step_tokens:
            number, text = waiting[0]
            digests = text.digests
            found = self.cache.prefixes.reserve(self._owner(number), text.wanted.stop, digests)
            if found is None:
                if not rows:
                    raise BadInput(f"{self.name}[{number}] finds no room: others hold the cache.")
                return
            self.cache.copy_pages(found.copies)
            waiting.popleft()
            rows.append(_Row(number, text, found.pages, digests, found.num_filled))

    def _step(self, rows: list[_Row]) -> States:
        """Compute the next tokens of these rows, the first ones first."""
        chunks, numbers, num_free = list[Chunk](), list[int](), self.step_tokens
        for row in rows:
            if num_free:
                chunk = row.chunk(num_free)
                chunks.append(chunk)
                numbers += [row.number] * chunk.num_logits
                num_free -= len(chunk.ids)
        batch = Batch.from_chunks(chunks, self.cache.device, self.llama.tiling.span_tokens)
        states = self.llama.states(batch, self.cache)
        for row, chunk in zip(rows, chunks, strict=False):
            for page in range(chunk.start // PAGE_TOKENS, min(chunk.stop // PAGE_TOKENS, len(row.digests))):
                self.cache.prefixes.publish(row.pages[page], row.digests[page])
            row.start = chunk.stop
        return States(torch.tensor(numbers, dtype=torch.int64, device=self.cache.device), states)

    def _owner(self, number: int) -> str:
        return f"text {id(self)} {number}"

    def _release(self, row: _Row) -> None:
        self.cache.prefixes.release(self._owner(row.number), row.digests)
