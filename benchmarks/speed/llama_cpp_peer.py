"""llama.cpp, by llama-cpp-python's batch interface: `llama_cpp_peer.py FILE THREADS ROW CACHE [plain]`.

Runs in the environment that `make bench-peers` makes. As its defaults are, or `plain`: without flash
attention and with one cache for all rows, which is faster at many rows. Only llama_decode is timed: its batch
is laid out before, and the likeliest tokens are looked for after it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp as cpp
import numpy as np

from benchmarks.speed.child import Room, serve

#: Tokens that a row may decode, and how many llama.cpp computes at once.
MAX_TOKENS, UBATCH_TOKENS = 128, 512

FLASH_OFF = 0  # llama_flash_attn_type


class Inputs:
    """Tokens with their places and rows, as llama_decode takes them."""

    def __init__(self, size: int) -> None:
        self._batch = cpp.llama_batch_init(size, 0, 1)

    def put(self, tokens: Sequence[int], places: Sequence[int], rows: Sequence[int], *, last: bool) -> None:
        """`last`: of the last token alone logits are wanted."""
        batch, num = self._batch, len(tokens)
        batch.n_tokens = num
        for index, (token, place, row) in enumerate(zip(tokens, places, rows, strict=True)):
            batch.token[index], batch.pos[index] = token, place
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
            batch.logits[index] = int(not last or index == num - 1)

    def decode_s(self, context: Any) -> float:
        started_s = perf_counter()
        failed = cpp.llama_decode(context, self._batch)
        cpp.llama_synchronize(context)
        took_s = perf_counter() - started_s
        if failed:
            raise RuntimeError(f"llama_decode answers {failed}")
        return took_s

    def free(self) -> None:
        cpp.llama_batch_free(self._batch)


def prefill_s(context: Any, prompt: Sequence[int], row: int = 0) -> float:
    """Compute a prompt as a row of a context."""
    inputs = Inputs(len(prompt))
    inputs.put(prompt, range(len(prompt)), [row] * len(prompt), last=True)
    took_s = inputs.decode_s(context)
    inputs.free()
    return took_s


class CppBatch:
    """Rows in a context of its own."""

    def __init__(self, model: Any, threads: int, prompts: Sequence[list[int]]) -> None:
        longest = max(map(len, prompts))
        self._context = new_context(model, threads, longest + MAX_TOKENS, len(prompts))
        self._vocab_size = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(model))
        for row, prompt in enumerate(prompts):
            prefill_s(self._context, prompt, row)
        self._places, self._last = [len(prompt) for prompt in prompts], [prompt[-1] for prompt in prompts]
        self._inputs = Inputs(len(prompts))

    def step(self) -> float:
        rows = range(len(self._places))
        self._inputs.put(self._last, self._places, rows, last=False)
        took_s = self._inputs.decode_s(self._context)
        self._last = [self.choose(row) for row in rows]
        self._places = [place + 1 for place in self._places]
        return took_s

    def choose(self, row: int) -> int:
        """The token that comes next."""
        logits = cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())

    def free(self) -> None:
        self._inputs.free()
        cpp.llama_free(self._context)


class LlamaCpp:
    def __init__(self, room: Room) -> None:
        self.model = load_model(room.path)
        self._threads = room.threads
        self._context = new_context(self.model, room.threads, room.row_tokens, 1)
        self.facts = facts()

    def prefill_s(self, prompt: list[int]) -> float:
        cpp.llama_memory_clear(cpp.llama_get_memory(self._context), True)
        return prefill_s(self._context, prompt)

    def batch(self, prompts: Sequence[list[int]]) -> CppBatch:
        return CppBatch(self.model, self._threads, prompts)


def load_model(path: Path) -> Any:
    cpp.llama_backend_init()
    model = cpp.llama_model_load_from_file(str(path).encode(), cpp.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp refuses {path.name}")
    return model


def facts() -> dict[str, Any]:
    """What a reader has to know of this llama.cpp."""
    return {
        "version": cpp.__version__,
        "system": cpp.llama_print_system_info().decode(),
        "built": json.loads((Path(sys.prefix) / "peers.json").read_text()),
    }


def new_context(model: Any, threads: int, row_tokens: int, num_rows: int) -> Any:
    params = cpp.llama_context_default_params()
    params.n_ctx, params.n_batch = -(-row_tokens // 256) * 256 * num_rows, row_tokens
    params.n_ubatch = UBATCH_TOKENS
    params.n_seq_max = num_rows
    params.n_threads = params.n_threads_batch = threads
    if "plain" in sys.argv[5:]:
        params.kv_unified, params.flash_attn_type = True, FLASH_OFF
    context = cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp makes no context")
    return context


if __name__ == "__main__":
    serve(LlamaCpp)
