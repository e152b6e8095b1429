"""llama.cpp as it embeds: `llama_cpp_vectors.py FILE THREADS ROW_TOKENS CACHE_TOKENS`.

Runs in the environment that `make bench-peers` makes. A batch takes as many texts as it can, each a sequence
of its own, with its default attention; without flash attention, in one cache, it is slower.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import llama_cpp as cpp
import numpy as np

from benchmarks.speed.child import Room, serve_texts
from benchmarks.speed.llama_cpp_peer import Inputs, facts, load_model

#: Tokens of a batch, and those that it computes at once.
BATCH_TOKENS, UBATCH_TOKENS = 2_048, 512
#: Most sequences of a batch.
MAX_ROWS = 128


class LlamaCppVectors:
    def __init__(self, room: Room) -> None:
        self._model, self._threads = load_model(room.path), room.threads
        self._width = cpp.llama_model_n_embd(self._model)
        self._contexts: dict[tuple[int, int], Any] = {}
        self._inputs = Inputs(BATCH_TOKENS)
        self.facts = facts()

    def texts_s(self, texts: Sequence[list[int]]) -> float:
        longest = max(map(len, texts))
        num_rows = min(len(texts), MAX_ROWS, BATCH_TOKENS // longest)
        context = self._context(longest, num_rows)
        started_s = perf_counter()
        for lot in _lots(texts, num_rows):
            cpp.llama_memory_clear(cpp.llama_get_memory(context), True)
            self._inputs.put(
                [token for text in lot for token in text],
                [place for text in lot for place in range(len(text))],
                [row for row, text in enumerate(lot) for _ in text],
                last=False,
            )
            self._inputs.decode_s(context)
            for row in range(len(lot)):
                vector = cpp.llama_get_embeddings_seq(context, row)
                numbers = np.ctypeslib.as_array(vector, (self._width,)).copy()
                numbers /= np.linalg.norm(numbers)
        return perf_counter() - started_s

    def _context(self, row_tokens: int, num_rows: int) -> Any:
        """One for texts of so many tokens, made once."""
        key = row_tokens, num_rows
        if key not in self._contexts:
            self._contexts[key] = _new_context(self._model, self._threads, row_tokens, num_rows)
        return self._contexts[key]


def _lots(texts: Sequence[list[int]], num_rows: int) -> Iterator[Sequence[list[int]]]:
    for first in range(0, len(texts), num_rows):
        yield texts[first : first + num_rows]


def _new_context(model: Any, threads: int, row_tokens: int, num_rows: int) -> Any:
    params = cpp.llama_context_default_params()
    params.embeddings = True
    row_room = -(-row_tokens // 256) * 256
    params.n_ctx, params.n_batch, params.n_ubatch = row_room * num_rows, BATCH_TOKENS, UBATCH_TOKENS
    params.n_seq_max = num_rows
    params.n_threads = params.n_threads_batch = threads
    context = cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp makes no context")
    return context


if __name__ == "__main__":
    serve_texts(LlamaCppVectors)
