"""The answers of a batch so far: journals of earlier feeders, sealed, and those of this one.

A feeder that has lost its batch without knowing may still write. What it adds to its journals after they were
sealed does not count: the rows run again, and each has one line.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal

from llama_herd.tasks.batch.answer_line import answered_row, error_line, output_line
from llama_herd.tasks.batch.done_rows import DoneRows
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.feeder.batch_lease import BatchLease
from llama_herd.tasks.ledger.batch_records import BatchRecord, SealedPart
from llama_herd.tasks.storage.storage import Journal, Storage, StoragePlace

PartKind = Literal["output", "errors"]
#: More than a feeder writes before it lets Redis forget the jobs.
_MOST_LEFT = 8192

PART_KINDS: tuple[PartKind, ...] = ("output", "errors")


class AnswerParts:
    """The answers of a batch that is run, line by line. Open within the block.

    done: rows that have a line. last_rows: the last rows of earlier feeders: Redis may still have their jobs.
    """

    def __init__(self, storage: Storage, tenant: str, lease: BatchLease) -> None:
        """Seals what earlier feeders have written, and reads which rows are done."""
        self.record = lease.record
        self.done = DoneRows()
        self.last_rows = deque[int](maxlen=_MOST_LEFT)
        self._storage = storage
        self._folder = parts_place(tenant, self.record)
        self._lease = lease
        self._journals: dict[PartKind, Journal] = {}
        self._opened = ExitStack()
        self._sealed = self._seal_earlier()
        self.num_done = self._read_done("output")
        self.num_failed = self._read_done("errors")

    def __enter__(self) -> "AnswerParts":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def write(self, items: Sequence[BatchItem]) -> None:
        """Write a line for each item; they are safe when it returns. Raises StorageUnavailable."""
        run_id = self.record.run_id
        good = [one for one in items if one.failure is None]
        bad = [one for one in items if one.failure is not None]
        self._append("output", [output_line(run_id, one) for one in good])
        self._append("errors", [error_line(run_id, one) for one in bad])
        self.num_done += len(good)
        self.num_failed += len(bad)
        for one in items:
            self.done.add(one.index)

    @property
    def has_own_lines(self) -> bool:
        """Whether this feeder has written some."""
        return bool(self._journals)

    def num_lines(self, kind: PartKind) -> int:
        """How many rows have a line of this kind."""
        return self.num_done if kind == "output" else self.num_failed

    def lines(self, kind: PartKind) -> Iterator[bytes]:
        """All lines of a kind, once this feeder writes no more."""
        own = self._place(kind, self.record.epoch)
        for epoch, extent in [*self._extents(kind), (self.record.epoch, self._storage.extent(own))]:
            yield from self._storage.lines(self._place(kind, epoch), extent)

    def _append(self, kind: PartKind, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        if kind not in self._journals:
            journal = self._storage.journal(self._place(kind, self.record.epoch))
            self._journals[kind] = self._opened.enter_context(journal)
        self._journals[kind].append(lines)

    def _seal_earlier(self) -> tuple[SealedPart, ...]:
        known = self.record.sealed
        last = max((one.epoch for one in known), default=0)
        found = tuple(
            SealedPart(epoch, *(self._storage.extent(self._place(kind, epoch)) for kind in PART_KINDS))
            for epoch in range(last + 1, self.record.epoch)
        )
        if not found:
            return known
        # Of those without a line only the last one is kept: it says how far it was looked.
        sealed = tuple(one for one in (*known, *found) if one.output or one.errors or one is found[-1])
        self._lease.renew(sealed=json.dumps(sealed))
        return sealed

    def _read_done(self, kind: PartKind) -> int:
        num = 0
        for epoch, extent in self._extents(kind):
            for line in self._storage.lines(self._place(kind, epoch), extent):
                row = answered_row(line, self.record.run_id)
                if row is not None:
                    self.done.add(row)
                    self.last_rows.append(row)
                    num += 1
                self._lease.renew_if_due()
        return num

    def _extents(self, kind: PartKind) -> list[tuple[int, int]]:
        return [(one.epoch, getattr(one, kind)) for one in self._sealed]

    def _place(self, kind: PartKind, epoch: int) -> StoragePlace:
        return self._folder / f"{kind}-{epoch}.jsonl"


def parts_place(tenant: str, record: BatchRecord) -> StoragePlace:
    """Where the journals of a batch are."""
    return StoragePlace(tenant, record.id)
