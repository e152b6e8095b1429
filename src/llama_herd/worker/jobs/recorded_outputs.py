"""What earlier attempts at a job have recorded of its outputs."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from llama_herd.tasks.protocol.events import Event, FinishReason, Started, StopReason, Token, Vectors
from llama_herd.worker.jobs.output_reader import OutputCount


class RecordedOutputs(NamedTuple):
    """The events of earlier attempts: ids and texts by output, and a hash of all text in their order.

    vectors: numbers of the texts whose vectors they have. dimensions: of the models that made these, where
    they say so. ends: why outputs have ended, if there are several. weights_digests: of the models that made
    tokens or vectors, where they say so.
    """

    ids: dict[int, list[int]]
    texts: dict[int, str]
    text_hash: "hashlib._Hash"
    said: Mapping[int, OutputCount] = {}
    vectors: frozenset[int] = frozenset()
    ends: Mapping[int, tuple[FinishReason, StopReason]] = {}
    dimensions: frozenset[int] = frozenset()
    weights_digests: frozenset[str] = frozenset()

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """Gather what the events say of each output."""
        ids, texts = dict[int, list[int]](), dict[int, list[str]]()
        said, vectors = dict[int, OutputCount](), set[int]()
        started: Started | None = None
        dimensions, digests = set[int | None](), set[str | None]()
        ends = dict[int, tuple[FinishReason, StopReason]]()
        text_hash = hashlib.sha256()
        for event in events:
            if isinstance(event, Started):
                started = event
            if isinstance(event, Vectors | Token) and started is not None:
                digests.add(started.weights_digest)
            if isinstance(event, Vectors):
                vectors.update(event.texts)
                dimensions.add(started.dimensions if started else None)
            if isinstance(event, Token):
                choice = event.choice or 0
                ids.setdefault(choice, []).extend(event.ids)
                texts.setdefault(choice, []).append(event.text)
                said[choice] = said.get(choice, OutputCount()).plus(event)
                text_hash.update(event.text.encode())
                if event.finish_reason is not None:
                    ends[choice] = event.finish_reason, event.stop_reason
        joined = {choice: "".join(parts) for choice, parts in texts.items()}
        told = frozenset(filter(None, dimensions)), frozenset(filter(None, digests))
        return cls(ids, joined, text_hash, said, frozenset(vectors), ends, *told)

    @property
    def num(self) -> int:
        """Tokens, or vectors."""
        return len(self.vectors) or sum(map(len, self.ids.values()))
