"""One forward: the rows of a step go through the model, and their logits become tokens and scores.

Letters: R rows of logits, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence as Rows
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import accumulate, compress

import torch
from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.heads import Head
from llama_herd.model.kernels.draw import Draw
from llama_herd.model.llama2 import Llama
from llama_herd.model.native_decoder import NativeDecoder, Token
from llama_herd.model.native_layers import FEW_TOKENS
from llama_herd.model.upload import Send, upload
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.pooler import Pooler
from llama_herd.worker.engine.runner import Read, Reading, Row, TokenReading
from llama_herd.worker.engine.sampling.sampler import likeliest, sample, sample_each, takes_likeliest
from llama_herd.worker.engine.sampling.scores import Scores
from llama_herd.worker.engine.sequence import Sequence

#: Operators on so many tokens and fewer are done sooner by one thread. Torch's others spin for milliseconds
#: before they sleep, on cores that the kernels' threads then lack.
ONE_THREAD_TOKENS = 64


@contextmanager
def one_for_few(num_tokens: int) -> Iterator[None]:
    """Let torch have one thread meanwhile if there are few tokens."""
    num_threads = torch.get_num_threads()
    if num_tokens > ONE_THREAD_TOKENS or num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class ModelRunner:
    """A runner that has computed a forward when `launch` returns: nothing is ever in flight."""

    overlaps = False

    def __init__(
        self, llama: Llama, cache: Cache, draw: Draw | None = None, head: Head | None = None
    ) -> None:
        """Make a runner. draw: a native library's function to draw tokens; None: sample in torch.

        head: makes vectors of what texts come to; None: there are no texts.
        """
        self._llama = llama
        self._pooler = None if head is None else Pooler(llama.norm, head)
        self._draw = draw
        self._cache = cache
        self._is_native = llama.is_native
        self._decoder = NativeDecoder.if_plain(llama, cache)
        self.on_layer: Callable[[], None] | None = None

    def begin(self, sequence: Sequence) -> None:
        self._cache.copy_pages(sequence.copies)

    def launch(self, rows: Rows[Row]) -> Read:
        readings = self.run(rows)
        return lambda: readings

    def run(self, rows: Rows[Row]) -> list[Reading]:
        """Launch a forward of the rows and read it at once."""
        if self._decoder is not None and len(rows) <= FEW_TOKENS and all(row.decodes for row in rows):
            return self._decoded(self._decoder, rows)
        cache, tiling = self._cache, self._llama.tiling
        batch = Batch.from_chunks([chunk_of(row) for row in rows], cache.device, tiling.span_tokens)
        with one_for_few(len(batch.ids)) if self._is_native else nullcontext():
            if any(row.sequence.vector is not None for row in rows):
                return self._with_vectors(rows, batch)
            logits = self._llama.forward(batch, cache, self.on_layer)  # (R, V)
        return self._drawn(rows, logits)

    def _drawn(self, rows: Rows[Row], logits: Tensor) -> list[Reading]:
        """What rows without texts have found, by their logits (R, V)."""
        tiling = self._llama.tiling
        last, scores = split_logits(rows, logits, partial(upload, device=logits.device))
        sampled = [row.sequence.sampling_row() for row in rows if row.is_complete]
        tokens = sample_each(last, sampled) if tiling.is_fixed else sample(last, sampled, self._draw)
        return readings_of(rows, scores, tokens)

    @torch.inference_mode()
    def _with_vectors(self, rows: Rows[Row], batch: Batch) -> list[Reading]:
        """Of a step with texts: what they have found, and what the other rows have."""
        assert self._pooler is not None, "a text, but no way to make a vector of it"
        hidden = self._llama.hidden(batch, self._cache, self.on_layer)[batch.logit_rows]  # (R, C)
        is_text = [row.sequence.vector is not None for row in rows]
        if all(is_text):
            return self._pooler.readings(rows, hidden)
        of_texts = torch.tensor(
            [is_one for is_one, row in zip(is_text, rows, strict=True) for _ in range(row.num_logits)]
        )
        texts = iter(self._pooler.readings([*compress(rows, is_text)], hidden[of_texts]))
        drawing = [row for row in rows if row.sequence.vector is None]
        others = iter(self._drawn(drawing, self._llama.logits(hidden[~of_texts])))
        return [next(texts if is_one else others) for is_one in is_text]

    def _decoded(self, decoder: NativeDecoder, rows: Rows[Row]) -> list[Reading]:
        """The next tokens of rows that decode."""
        found = decoder([token_of(row) for row in rows])
        if self.on_layer is not None:
            self.on_layer()
        sampled = [row.sequence.sampling_row() for row in rows]
        if all(map(takes_likeliest, sampled)):
            tokens = likeliest(found.largest, found.ids)
        else:
            known = torch.tensor(found.largest), torch.tensor(found.ids)
            tokens = sample(found.logits, sampled, self._draw, known)
        return readings_of(rows, {}, tokens)


def token_of(row: Row) -> Token:
    """The one token of a row that decodes."""
    sequence = row.sequence
    return Token(sequence.tokens(row.start, row.start + 1)[0], row.start, sequence.pages[0])


def chunk_of(row: Row) -> Chunk:
    """The tokens of a row, all of them known."""
    ids = row.sequence.tokens(row.start, row.start + row.num_tokens)
    return Chunk(row.sequence.pages, start=row.start, ids=ids, num_logits=row.num_logits)


def split_logits(rows: Rows[Row], logits: Tensor, send: Send) -> tuple[Tensor, dict[int, Scores]]:
    """Split logits (R, V) of a forward into those of next tokens, and scores of prompts, by their rows."""
    stops = list(accumulate(row.num_logits for row in rows))
    scores = dict[int, Scores]()
    for number, (row, stop) in enumerate(zip(rows, stops, strict=True)):
        if row.num_scores:
            first = stop - row.num_logits
            scores[number] = scores_of(row, logits[first : first + row.num_scores], send)
    last = [stop - 1 for row, stop in zip(rows, stops, strict=True) if row.is_complete]
    return logits if len(last) == len(logits) else logits[send(last)], scores


def scores_of(row: Row, logits: Tensor, send: Send) -> Scores:
    """The scores of a row's prompt tokens by their logits (N, V)."""
    return Scores.from_logits(logits, send(row.scored_ids), row.sequence.params.prompt_logprobs or 0)


def readings_of(
    rows: Rows[Row], scores: Mapping[int, Scores], tokens: Iterable[SampledToken]
) -> list[Reading]:
    """What a forward has found for each row. tokens: of the complete rows, in their order."""
    drawn = iter(tokens)
    return [
        TokenReading(
            row,
            scores[number].tokens() if number in scores else [],
            next(drawn) if row.is_complete else None,
        )
        for number, row in enumerate(rows)
    ]
