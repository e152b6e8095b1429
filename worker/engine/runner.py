"""One forward: the rows of a step go through the model, and their logits become tokens and scores.

Letters: R rows of logits, V vocabulary.
"""

from collections.abc import Callable, Sequence as Rows
from contextlib import nullcontext
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.kernels.draw import Draw
from llama_herd.model.llama2 import Llama
from llama_herd.model.prefix_cache import Copy
from llama_herd.model.upload import upload
from llama_herd.worker.engine.sampling.row import SampledToken
from llama_herd.worker.engine.sampling.sampler import sample, sample_each, score
from llama_herd.worker.engine.scheduler import Row
from llama_herd.worker.engine.torch_threads import one_for_few


class Reading(NamedTuple):
    """What a forward tells about one row: how likely its prompt tokens were, and its next token if due."""

    row: Row
    prompt_scores: list[SampledToken]
    token: SampledToken | None


class ModelRunner:
    """The model and its cache as the engine sees them: rows go in, readings come out, and no tensors.

    A run changes no sequence and nothing that its next token depends on. So a forward that failed may be
    repeated, in any parts: it writes the same keys and values to the same cells.
    """

    def __init__(self, llama: Llama, cache: Cache, draw: Draw | None = None) -> None:
        """`draw` is a native library's."""
        self._llama = llama
        self._draw = draw
        self._cache = cache
        self._is_native = llama.is_native
        #: Called after each layer of a forward.
        self.on_layer: Callable[[], None] | None = None

    def copy_pages(self, copies: Rows[Copy]) -> None:
        """Copy the pages that a sequence takes over from others."""
        self._cache.copy_pages(copies)

    def run(self, rows: Rows[Row]) -> list[Reading]:
        """Compute the rows' tokens, keep their keys and values, draw the next tokens."""
        cache, tiling = self._cache, self._llama.tiling
        batch = Batch.of([_chunk(row) for row in rows], cache.device, tiling.span_tokens)
        with one_for_few(len(batch.ids)) if self._is_native else nullcontext():
            logits = self._llama.forward(batch, cache, self.on_layer)  # (R, V)
        stops = list(accumulate(row.num_logits for row in rows))
        sampled = [row.sequence.sampling_row() for row in rows if row.is_complete]
        last = logits
        if len(sampled) < len(logits):
            picked = [stop - 1 for row, stop in zip(rows, stops, strict=True) if row.is_complete]
            last = logits[upload(picked, logits.device)]
        tokens = iter(sample_each(last, sampled) if tiling.is_fixed else sample(last, sampled, self._draw))
        return [
            Reading(
                row,
                _prompt_scores(row, logits[stop - row.num_logits : stop]),
                next(tokens) if row.is_complete else None,
            )
            for row, stop in zip(rows, stops, strict=True)
        ]


def _chunk(row: Row) -> Chunk:
    sequence = row.sequence
    ids = sequence.uncached(row.num_tokens)
    return Chunk(sequence.pages, start=sequence.num_cached, ids=ids, num_logits=row.num_logits)


def _prompt_scores(row: Row, logits: Tensor) -> list[SampledToken]:
    """How likely each prompt token was that follows a token of the row."""
    if not row.num_scores:
        return []
    start = row.sequence.num_cached + 1
    ids = row.sequence.tokens(start, start + row.num_scores)
    return score(logits[: row.num_scores], ids, row.sequence.params.prompt_logprobs or 0)
