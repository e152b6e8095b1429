"""llama.cpp's side of `benchmarks.forms`: `forms_peer.py FILE REQUEST`, in the environment of the peers.

A row's grammar is tried with the likeliest token; if it refuses that, it looks at the whole vocabulary.
"""

import ctypes
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp as cpp
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf
from numpy.typing import NDArray

from benchmarks.speed.child import Prompts, Room
from benchmarks.speed.llama_cpp_peer import CppBatch, LlamaCpp

LENGTH = 64


class GrammarBatch(CppBatch):
    """Rows that follow a grammar each."""

    def __init__(self, model: Any, threads: int, rows: int, gbnf: str | None) -> None:
        prompts = Prompts()
        super().__init__(model, threads, [prompts.next(LENGTH) for _ in range(rows)])
        self._choosing_s = 0.0
        vocab = cpp.llama_model_get_vocab(model)
        self._grammars = [
            None if gbnf is None else cpp.llama_sampler_init_grammar(vocab, gbnf.encode(), b"root")
            for _ in range(rows)
        ]
        self._candidates = (cpp.llama_token_data * self._vocab_size)()
        self._all_ids = np.arange(self._vocab_size)

    def step(self) -> float:
        """With what the choice of tokens takes."""
        self._choosing_s = 0.0
        return super().step() + self._choosing_s

    def choose(self, row: int) -> int:
        started_s = perf_counter()
        best = self._allowed(row, super().choose(row))
        self._choosing_s += perf_counter() - started_s
        return best

    def _allowed(self, row: int, best: int) -> int:
        """The likeliest token, or the likeliest that the grammar allows."""
        grammar = self._grammars[row]
        if grammar is None:
            return best
        if self._survivor(grammar, row, np.array([best])) is None:
            best = self._survivor(grammar, row, self._all_ids) or best
        cpp.llama_sampler_accept(grammar, best)
        return best

    def _survivor(self, grammar: Any, row: int, token_ids: NDArray[np.int64]) -> int | None:
        """The likeliest of these tokens that the grammar lets follow."""
        logits = np.ctypeslib.as_array(cpp.llama_get_logits_ith(self._context, row), (self._vocab_size,))
        view = np.ctypeslib.as_array(self._candidates)[: len(token_ids)]
        view["id"], view["logit"], view["p"] = token_ids, logits[token_ids], 0.0
        data = ctypes.cast(self._candidates, cpp.llama_token_data_p)
        found = cpp.llama_token_data_array(data=data, size=len(token_ids), selected=-1, sorted=False)
        cpp.llama_sampler_apply(grammar, ctypes.byref(found))
        best = int(view["logit"].argmax())
        return int(view["id"][best]) if np.isfinite(view["logit"][best]) else None


def main() -> None:
    asked = json.loads(sys.argv[2])
    loaded = LlamaCpp(Room(Path(sys.argv[1]), asked["threads"], LENGTH, LENGTH))
    gbnf = json_schema_to_gbnf(json.dumps(asked["schema"]))
    print(json.dumps([(rows, _taken_ms(loaded, asked, gbnf, rows)) for rows in asked["rows"]]))


def _taken_ms(loaded: LlamaCpp, asked: dict[str, Any], gbnf: str, rows: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"no form": [], "all": []}
    for _ in range(asked["rounds"]):
        for name, grammar in (("no form", None), ("all", gbnf)):
            batch = GrammarBatch(loaded.model, asked["threads"], rows, grammar)
            batch.step()
            taken[name] += [1e3 * batch.step() for _ in range(asked["steps"])]
            batch.free()
    return taken


if __name__ == "__main__":
    main()
