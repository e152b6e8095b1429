"""The side of a measured engine: a process that loads one file and then does what it is told.

It is called with FILE, THREADS, the most tokens of a row and of all rows together, and speaks JSON, a line
each: first what it is, when its first token has come; then an answer to each request. Nothing here imports
more than Python has, since peers live in another environment.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from benchmarks.process_figures import peak_bytes

#: Ids of prompts: plain tokens in every file.
IDS = range(300, 2_000)


@dataclass(frozen=True)
class Room:
    """What a model is loaded for."""

    path: Path
    threads: int
    row_tokens: int
    cache_tokens: int


@dataclass
class Prompts:
    """Prompts of random ids: no two begin alike, and all engines get the same."""

    _num: int = field(default=0)

    def next(self, num_tokens: int) -> list[int]:
        self._num += 1
        return Random(self._num).choices(IDS, k=num_tokens)


class Batch(Protocol):
    """Rows that are being decoded."""

    def step(self) -> float:
        """Compute one token of each row, greedily, and return the seconds that it took."""


class Measured(Protocol):
    """A loaded model that can be measured."""

    #: What the reader has to know of it, such as its version.
    facts: dict[str, Any]

    def prefill_s(self, prompt: list[int]) -> float:
        """Seconds from a prompt to its first token."""

    def batch(self, prompts: Sequence[list[int]]) -> Batch:
        """Rows whose prompts are in the cache."""


class MeasuredEmbedder(Protocol):
    """A loaded model that embeds."""

    facts: dict[str, Any]

    def texts_s(self, texts: Sequence[list[int]]) -> float:
        """Seconds from the ids of texts to their vectors."""


def serve(load: Callable[[Room], Measured]) -> None:
    """Load and answer until standard input ends. A batch is filled once and goes on where it was."""
    replies, prompts = _replies(), Prompts()
    model = load(_room())
    model.prefill_s(prompts.next(2))
    _tell(replies, facts=model.facts, peak_bytes=peak_bytes())
    batches: dict[tuple[int, ...], Batch] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "prefill" in request:
            _tell(replies, seconds=model.prefill_s(prompts.next(request["prefill"])))
            continue
        lengths = tuple(request["decode"])
        if lengths not in batches:
            batches[lengths] = model.batch([prompts.next(length) for length in lengths])
            batches[lengths].step()
        seconds = [batches[lengths].step() for _ in range(request["steps"])]
        _tell(replies, seconds=sorted(seconds)[len(seconds) // 2], peak_bytes=peak_bytes())


def serve_texts(load: Callable[[Room], MeasuredEmbedder]) -> None:
    """Load, and answer how long the vectors of texts take, until standard input ends."""
    replies, prompts = _replies(), Prompts()
    model = load(_room())
    model.texts_s([prompts.next(2)])
    _tell(replies, facts=model.facts, peak_bytes=peak_bytes())
    for line in sys.stdin:
        texts = [prompts.next(length) for length in json.loads(line)["texts"]]
        _tell(replies, seconds=model.texts_s(texts), peak_bytes=peak_bytes())


def _room() -> Room:
    """What the command line says."""
    path, *numbers = sys.argv[1:5]
    return Room(Path(path), *map(int, numbers))


def _replies() -> Any:
    """Where answers are written."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    return replies


def _tell(replies: Any, **answer: Any) -> None:
    replies.write(json.dumps(answer) + "\n")
