"""Our engine, without a queue: `ours.py FILE THREADS ROW_TOKENS CACHE_TOKENS`."""

from collections.abc import Sequence
from typing import Any

from benchmarks.jobs import greedy
from benchmarks.speed.child import Room, serve
from benchmarks.timed_engine import TimedEngine

#: More rows than any batch has, and tokens that a row may decode.
SLOTS, MAX_TOKENS = 32, 128
#: Prompts are hardly cut, so that few rows decode before the others.
PREFILL_TOKENS = 4_096


class Ours:
    """A model as a worker loads it, with its default settings but for threads and room."""

    def __init__(self, room: Room) -> None:
        self._engine = TimedEngine.load(
            model=room.path,
            threads=room.threads,
            slots=SLOTS,
            context_tokens=room.row_tokens,
            kv_cache_tokens=room.cache_tokens,
        )
        self._engine.model.llama.settle()  # as a worker does before its first job
        plan = self._engine.model.plan
        self.facts: dict[str, Any] = {
            "dtype": plan.dtype,
            "form": plan.form_note,
            "weights_s": self._engine.model.weights_s,
        }

    def prefill_s(self, prompt: list[int]) -> float:
        engine = self._engine.other()
        engine.submit(f"prompt {engine.trace.started_s}", prompt, greedy(1))
        took_s = 0.0
        while engine.engine.has_work:
            took_s += engine.step()
        return took_s

    def batch(self, prompts: Sequence[list[int]]) -> TimedEngine:
        """Rows of an engine of its own; all of them decode."""
        engine = self._engine.other(prefill_tokens=PREFILL_TOKENS)
        for row, prompt in enumerate(prompts):
            engine.submit(
                f"row {row} of {len(prompts)}, {engine.trace.started_s}", prompt, greedy(MAX_TOKENS)
            )
        engine.fill()
        return engine


if __name__ == "__main__":
    serve(Ours)
