"""llama.cpp, by llama-cpp-python's batch interface: `llama_cpp_peer.py FILE THREADS [plain]`.

Runs in the environment that `make bench-peers` makes. As its defaults are, or `plain`: without flash
attention and with one cache for all rows, which is faster at many rows.
"""

import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp as cpp
import numpy as np

from benchmarks.speed.child import ids, serve

ROWS, CONTEXT_TOKENS, UBATCH_TOKENS = 32, 1_024, 512

FLASH_OFF = 0  # llama_flash_attn_type


class CppBatch:
    """Rows in a context of its own. Their prompt is computed once and shared, which is kind to a cache."""

    def __init__(self, model: Any, threads: int, lengths: Sequence[int]) -> None:
        self._context = new_context(model, threads, len(lengths))
        self._vocab_size = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(model))
        self._places = list(lengths)
        decode(self._context, ids(max(lengths)), range(max(lengths)), [0] * max(lengths))
        memory = cpp.llama_get_memory(self._context)
        for row in range(1, len(lengths)):
            cpp.llama_memory_seq_cp(memory, 0, row, -1, -1)  # caches of their own can be copied whole only
        for row, length in enumerate(lengths):
            cpp.llama_memory_seq_rm(memory, row, length, -1)
        self._last = [ids(length)[-1] for length in lengths]

    def step(self) -> float:
        started_s = perf_counter()
        rows = range(len(self._places))
        decode(self._context, self._last, self._places, rows, all_logits=True)
        self._last = [self._best(row) for row in rows]
        self._places = [place + 1 for place in self._places]
        return perf_counter() - started_s

    def _best(self, row: int) -> int:
        logits = cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())


class LlamaCpp:
    def __init__(self, path: Path, threads: int) -> None:
        cpp.llama_backend_init()
        self._model = cpp.llama_model_load_from_file(str(path).encode(), cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp refuses {path.name}")
        self._threads = threads
        self._context = new_context(self._model, threads, 1)
        self.facts: dict[str, Any] = {
            "version": cpp.__version__,
            "system": cpp.llama_print_system_info().decode(),
            "built": json.loads((Path(sys.prefix) / "peers.json").read_text()),
        }

    def prefill_s(self, num_tokens: int) -> float:
        cpp.llama_memory_clear(cpp.llama_get_memory(self._context), True)
        started_s = perf_counter()
        decode(self._context, ids(num_tokens), range(num_tokens), [0] * num_tokens)
        return perf_counter() - started_s

    def batch(self, lengths: Sequence[int]) -> CppBatch:
        return CppBatch(self._model, self._threads, lengths)


def new_context(model: Any, threads: int, num_rows: int) -> Any:
    params = cpp.llama_context_default_params()
    params.n_ctx = CONTEXT_TOKENS * num_rows
    params.n_batch = params.n_ubatch = UBATCH_TOKENS
    params.n_seq_max = num_rows
    params.n_threads = params.n_threads_batch = threads
    if "plain" in sys.argv[3:]:
        params.kv_unified, params.flash_attn_type = True, FLASH_OFF
    context = cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp makes no context")
    return context


def decode(
    context: Any, tokens: Sequence[int], places: Sequence[int], rows: Sequence[int], all_logits: bool = False
) -> None:
    """Compute tokens at these places of these rows; logits of the last one, or of all."""
    num_tokens = len(tokens)
    batch = cpp.llama_batch_init(num_tokens, 0, 1)
    batch.n_tokens = num_tokens
    for index, (token, place, row) in enumerate(zip(tokens, places, rows, strict=True)):
        batch.token[index], batch.pos[index] = token, place
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
        batch.logits[index] = ctypes.c_int8(all_logits or index == num_tokens - 1).value
    failed = cpp.llama_decode(context, batch)
    cpp.llama_synchronize(context)
    cpp.llama_batch_free(batch)
    if failed:
        raise RuntimeError(f"llama_decode answers {failed}")


if __name__ == "__main__":
    serve(LlamaCpp)
