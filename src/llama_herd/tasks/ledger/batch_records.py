"""Calls for the records of batches that came over HTTP, and that any gateway may run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from llama_herd.tasks.ledger.batch_record import BatchRecord, BatchRequest, BatchState
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Argument, RedisCall
from llama_herd.tasks.ledger.replies import fields_of, text
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.ledger.stored_files import (
    DueItem,
    NewFile,
    Quota,
    QuotaExceeded,
    RecordPage,
    records_page,
)

_CREATE = Script("batch_create", "clock")
_CLAIM = Script("batch_claim", "clock")
_NOTE = Script("batch_note", "clock", "batch")
_START = Script("batch_start", "clock", "batch", "quota")
_END = Script("batch_end", "clock", "batch", "quota", "file", "outbox")
_CANCEL = Script("batch_cancel", "clock", "batch")
SCRIPTS = (_CREATE, _CLAIM, _NOTE, _START, _END, _CANCEL)

#: How long the record of a batch is kept after its end.
ENDED_TTL_S = 30 * 86_400


class ClaimedBatch(NamedTuple):
    """A batch that the caller now runs, under the record's epoch. now_ms: the time by the clock of Redis."""

    record: BatchRecord
    now_ms: int


BatchRefusal = Literal["conflict", "no_file", "no_input", "elsewhere"]


@dataclass(frozen=True)
class BatchRecords(Keys):
    """All calls for one tenant's batches, whose files lie in one storage. storage: its id."""

    storage: str = ""

    def batch_key(self, batch_id: str) -> str:
        return self.key(f"{{{batch_id}}}:batch")

    @property
    def due_key(self) -> str:
        return f"herd:batches@{self.storage}"

    @property
    def _files_due_key(self) -> str:
        return f"herd:files@{self.storage}"

    def _member(self, name: str) -> str:
        return DueItem(self.tenant, name).member

    def _file_key(self, file_id: str) -> str:
        return self.key(f"{{{file_id}}}:file")

    def create(
        self, batch_id: str, request: BatchRequest, window_ms: int, most: int = 0, webhook_secret: str = ""
    ) -> RedisCall[BatchRecord | QuotaExceeded | BatchRefusal]:
        """Accept a batch. Repeating it changes nothing. most: batches that the tenant may have; 0: any.

        webhook_secret: what its webhook is signed with; the record keeps it until the end.
        """
        start, _, end = self.batch_key("\0").partition("\0")
        return RedisCall(
            _CREATE,
            (
                *(self.batch_key(batch_id), self.key("stored_batches")),
                *(self._file_key(request.input_file_id), self.due_key),
            ),
            (
                *(batch_id, self._member(batch_id), window_ms, self.storage, request.to_json()),
                *(most, start, end, webhook_secret),
            ),
            _read_created,
        )

    def get(self, batch_id: str) -> RedisCall[BatchRecord | None]:
        """A batch's record."""
        return RedisCall("HGETALL", (self.batch_key(batch_id),), (), _read_batch)

    def page(self, after: str, limit: int) -> RedisCall[RecordPage | None]:
        """Batches after one of them, the newest first; None if there is no such one."""
        return records_page(self, "stored_batches", "batch", (after, limit, "desc", "", 0))

    def cancel(self, batch_id: str) -> RedisCall[BatchRecord | BatchState | None]:
        """Let its feeder end a batch early. Answers its state if that is too late; None: no such batch."""
        return RedisCall(_CANCEL, (self.batch_key(batch_id),), (), _read_cancelled)

    def claim(self, batch_id: str, lease_ms: int) -> RedisCall[ClaimedBatch | None]:
        """Take a batch that is due; None if another feeder has it."""
        return RedisCall(
            _CLAIM,
            (self.batch_key(batch_id), self.due_key),
            (self._member(batch_id), lease_ms),
            _read_claimed,
        )

    def note(
        self,
        batch_id: str,
        epoch: int,
        lease_ms: int,
        state: BatchState | None = None,
        fields: Mapping[str, Argument] | None = None,
    ) -> RedisCall[BatchState | None]:
        """Renew the lease, enter a state, note what is known. None: another feeder has it, or it is over.

        A batch that is to be cancelled enters no other state. lease_ms 0: give it back.
        """
        pairs = [part for pair in (fields or {}).items() for part in pair]
        return RedisCall(
            _NOTE,
            (self.batch_key(batch_id), self.due_key),
            (self._member(batch_id), epoch, lease_ms, state or "", *pairs),
            _read_noted,
        )

    def start(
        self, record: BatchRecord, lease_ms: int, num_rows: int, model: str, rows: Quota
    ) -> RedisCall[BatchState | QuotaExceeded | None]:
        """Let a batch run whose input is valid, within the quota of rows. None: another feeder has it."""
        return RedisCall(
            _START,
            (self.batch_key(record.id), self.due_key, self.key("quota")),
            (
                *(self._member(record.id), record.epoch, lease_ms),
                *(num_rows, model, record.request.owner, *rows),
            ),
            _read_started,
        )

    def end(
        self,
        record: BatchRecord,
        final: BatchState,
        files: Sequence[NewFile] = (),
        fields: Mapping[str, Argument] | None = None,
    ) -> RedisCall[bool]:
        """End a batch, record its files, note its webhook, all at once. False: another feeder has it."""
        pairs = [part for pair in (fields or {}).items() for part in pair]
        life_ms = "" if record.request.files_life_ms is None else record.request.files_life_ms
        facts = [part for one in files for part in (one.id, self._member(one.id), one.name, one.num_bytes)]
        return RedisCall(
            _END,
            (
                *(self.batch_key(record.id), self.due_key, self._file_key(record.request.input_file_id)),
                *(self.key("stored_files"), self.key("quota"), self._files_due_key),
                *self.outbox_keys,
                *(self._file_key(one.id) for one in files),
            ),
            (
                *(self._member(record.id), record.epoch, final, record.request.owner, ENDED_TTL_S),
                *(self.storage, life_ms, record.id, record.request.webhook, len(pairs), *pairs, *facts),
            ),
            lambda reply: reply == b"ok",
        )

    def num_open(self) -> RedisCall[int]:
        """How many batches of all tenants in this storage have not ended, or have parts to delete."""
        return RedisCall("ZCARD", (self.due_key,), (), int)

    def note_cleaned(self, batch_id: str) -> RedisCall[None]:
        """Note that nothing is left to be done for an ended batch."""
        return RedisCall("ZREM", (self.due_key,), (self._member(batch_id),), lambda reply: None)


def _read_created(reply: list[Any]) -> BatchRecord | QuotaExceeded | BatchRefusal:
    kind, *rest = reply
    if kind == b"full":
        return QuotaExceeded.from_reply(rest)
    return BatchRecord.from_fields(fields_of(rest[0])) if kind == b"ok" else text(kind)  # type: ignore[return-value]


def _read_batch(reply: Any) -> BatchRecord | None:
    fields = fields_of(reply)
    return BatchRecord.from_fields(fields) if fields else None


def _read_claimed(reply: list[Any]) -> ClaimedBatch | None:
    kind, *rest = reply
    return ClaimedBatch(BatchRecord.from_fields(fields_of(rest[1])), rest[0]) if kind == b"yours" else None


def _read_noted(reply: list[Any]) -> BatchState | None:
    return text(reply[1]) if reply[0] == b"ok" else None  # type: ignore[return-value]


def _read_started(reply: list[Any]) -> BatchState | QuotaExceeded | None:
    return QuotaExceeded.from_reply(reply[1:]) if reply[0] == b"full" else _read_noted(reply)


def _read_cancelled(reply: list[Any]) -> BatchRecord | BatchState | None:
    kind, *rest = reply
    if kind == b"over":
        return text(rest[0])  # type: ignore[return-value]
    return BatchRecord.from_fields(fields_of(rest[0])) if kind == b"ok" else None
