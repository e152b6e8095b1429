"""The side of a measured engine: a process that loads one file and then does what it is told.

It is called with FILE and THREADS, and speaks JSON, a line each: first what it is, when its first token has
come; then an answer to each request. Nothing here imports more than Python has, since peers live in another
environment.
"""

import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

#: Ids of prompts: plain tokens in every file.
FIRST_ID, NUM_IDS = 10, 200


class Batch(Protocol):
    """Rows that are being decoded."""

    def step(self) -> float:
        """Compute one token of each row, greedily, and return the seconds that it took."""


class Measured(Protocol):
    """A loaded model that can be measured."""

    #: What the reader has to know of it, such as its version.
    facts: dict[str, Any]

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds from a prompt of so many tokens to its first token."""

    def batch(self, lengths: Sequence[int]) -> Batch:
        """Rows whose prompts of these lengths are in the cache."""


def serve(load: Callable[[Path, int], Measured]) -> None:
    """Load and answer until standard input ends. A batch is filled once and goes on where it was."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    model = load(Path(sys.argv[1]), int(sys.argv[2]))
    model.prefill_s(2)
    _tell(replies, facts=model.facts, peak_bytes=_peak_bytes())
    batches: dict[tuple[int, ...], Batch] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "prefill" in request:
            _tell(replies, seconds=model.prefill_s(request["prefill"]))
            continue
        lengths = tuple(request["decode"])
        if lengths not in batches:
            batches[lengths] = model.batch(lengths)
            batches[lengths].step()
        seconds = [batches[lengths].step() for _ in range(request["steps"])]
        _tell(replies, seconds=sorted(seconds)[len(seconds) // 2], peak_bytes=_peak_bytes())


def ids(num_tokens: int, first: int = 0) -> list[int]:
    """Token ids of a prompt; `first` makes one that no other begins like."""
    return [FIRST_ID + (first + 7 * place) % NUM_IDS for place in range(num_tokens)]


def _tell(replies: Any, **answer: Any) -> None:
    replies.write(json.dumps(answer) + "\n")


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
