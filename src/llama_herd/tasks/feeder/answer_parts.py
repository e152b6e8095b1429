"""The answers of a batch so far: journals of earlier feeders, sealed, and those of this one; and their files.

A feeder that has lost its batch without knowing may still write. What it adds to its journals after they were
sealed does not count: the rows run again, and each has one line.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal

from llama_herd.tasks.batch.answers import answered_row, error_line, output_line
from llama_herd.tasks.client.batch.batch_progress import DoneRows
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.feeder.batch_lease import BatchLease
from llama_herd.tasks.ledger.batch_records import BatchRecord, SealedPart
from llama_herd.tasks.ledger.stored_files import OUTPUT, NewFile, StoredFiles
from llama_herd.tasks.storage.storage import Journal, Storage, StoragePlace

PartKind = Literal["output", "errors"]
#: More than a feeder writes before it lets Redis forget the jobs.
_MOST_LEFT = 8192

PART_KINDS: tuple[PartKind, ...] = ("output", "errors")

#: The tokens of a line; vectors have no completion. A text that says the same has its quotes escaped.
_USAGE = re.compile(rb'"usage":\{"prompt_tokens":(\d{1,15}),(?:"completion_tokens":(\d{1,15}),)?')
#: Bytes of a file that are written together.
_PIECE_BYTES = 1 << 20


class AnswerParts:
    """The answers of a batch that is run, line by line. Open within the block.

    done: rows that have a line. last_rows: the last rows of earlier feeders: Redis may still have their jobs.
    prompt_tokens, completion_tokens: of the files that were made.
    """

    def __init__(self, storage: Storage, tenant: str, lease: BatchLease) -> None:
        """Seals what earlier feeders have written, and reads which rows are done."""
        self.record = lease.record
        self.done = DoneRows()
        self.last_rows = deque[int](maxlen=_MOST_LEFT)
        self.prompt_tokens = self.completion_tokens = 0
        self._storage = storage
        self._folder = parts_place(tenant, self.record)
        self._lease = lease
        self._journals: dict[PartKind, Journal] = {}
        self._opened = ExitStack()
        self._sealed = self._seal_earlier()
        for kind in PART_KINDS:
            self._read_done(kind)

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
        for one in items:
            self.done.add(one.index, has_failed=one.failure is not None)

    @property
    def has_own_lines(self) -> bool:
        """Whether this feeder has written some."""
        return bool(self._journals)

    def num_lines(self, kind: PartKind) -> int:
        """How many rows have a line of this kind."""
        return self.done.num_answered if kind == "output" else self.done.num_failed

    def lines(self, kind: PartKind) -> Iterator[bytes]:
        """All lines of a kind, once this feeder writes no more."""
        own = self._place(kind, self.record.epoch)
        for epoch, extent in [*self._extents(kind), (self.record.epoch, self._storage.extent(own))]:
            yield from self._storage.lines(self._place(kind, epoch), extent)

    def write_file(self, kind: PartKind) -> NewFile:
        """Make a file of all lines of a kind. Raises Fenced, and what Redis and the storage raise."""
        # Another feeder makes a file of another id: nothing is written over.
        source = f"{self.record.id}/{kind}/{self.record.epoch}"
        file_id = f"file-{hashlib.sha256(source.encode()).hexdigest()[:24]}"
        self._lease.run(StoredFiles(self._folder.tenant, self._storage.id).begin_upload(file_id))
        with self._storage.draft(StoragePlace(self._folder.tenant, file_id)) as draft:
            piece = bytearray()
            for line in self.lines(kind):
                if (found := _USAGE.search(line)) is not None:
                    self.prompt_tokens += int(found[1])
                    self.completion_tokens += int(found[2] or 0)
                piece += line
                self._lease.yield_turn()
                if len(piece) >= _PIECE_BYTES:
                    draft.write(bytes(piece))
                    piece.clear()
            draft.write(bytes(piece))
            draft.keep()
        name, owner = f"{self.record.id}_{kind}.jsonl", self.record.request.owner
        return NewFile(file_id, name, OUTPUT, draft.num_bytes, owner)

    def _append(self, kind: PartKind, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        if kind not in self._journals:
            journal = self._storage.journal(self._place(kind, self.record.epoch))
            self._journals[kind] = self._opened.enter_context(journal)
        self._journals[kind](lines)

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

    def _read_done(self, kind: PartKind) -> None:
        for epoch, extent in self._extents(kind):
            for line in self._storage.lines(self._place(kind, epoch), extent):
                row = answered_row(line, self.record.run_id)
                if row is not None:
                    self.done.add(row, has_failed=kind == "errors")
                    self.last_rows.append(row)
                self._lease.renew_if_due()

    def _extents(self, kind: PartKind) -> list[tuple[int, int]]:
        return [(one.epoch, getattr(one, kind)) for one in self._sealed]

    def _place(self, kind: PartKind, epoch: int) -> StoragePlace:
        return self._folder / f"{kind}-{epoch}.jsonl"


def parts_place(tenant: str, record: BatchRecord) -> StoragePlace:
    """Where the journals of a batch are."""
    return StoragePlace(tenant, record.id)
