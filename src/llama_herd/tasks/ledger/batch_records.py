"""The records of batches that came over HTTP, and that any gateway may run, with the calls for them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from llama_herd.tasks.ledger.keys import around_id
from llama_herd.tasks.ledger.redis_call import Argument, RedisCall
from llama_herd.tasks.ledger.replies import fields_of, text
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.ledger.stored_files import (
    NewFile,
    Quota,
    QuotaExceeded,
    RecordPage,
    StorageKeys,
    records_page,
)

BatchState = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
#: How a batch ends that has begun.
BatchOutcome = Literal["completed", "expired", "cancelled"]
FINAL = frozenset({"completed", "failed", "expired", "cancelled"})
STATES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A client's request for a batch.

    window: how long it may take, as the client wrote it. owner: fingerprint of the client's key.
    files_life_ms: how long its output and error file are kept. webhook: the address that is told of its end;
    empty: the tenant's. secret_sha256: of the secret that signs that, if it is not the tenant's.
    """

    input_file_id: str
    endpoint: str
    window: str
    metadata: Mapping[str, str] | None = None
    files_life_ms: int | None = None
    owner: str = ""
    webhook: str = ""
    secret_sha256: str = ""

    def to_json(self) -> str:
        return json.dumps({"v": 1, **asdict(self)})

    @classmethod
    def parse(cls, raw: bytes) -> "BatchRequest":
        facts = json.loads(raw)
        return cls(**{name: facts[name] for name in cls.__slots__})


class SealedPart(NamedTuple):
    """The part of an earlier feeder's answers that counts, by the storage's own measure."""

    epoch: int
    output: int
    errors: int


class LineError(NamedTuple):
    """Why a batch cannot begin. line: of its input. param: the field that is wrong."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch. times: when it entered each of its states, in unix milliseconds.

    sealed: the parts of earlier feeders. outcome: how it is to end, once no more rows run.
    vain_claims: how many feeders in turn, this one among them, have taken it and got no further.
    line: the last long line that one of them has begun to read; 0: none.
    unserved: models of its rows that no worker has. is_stalled: it was given back while no row could run.
    """

    id: str
    request: BatchRequest
    state: BatchState
    input_name: str
    created_ms: int
    expires_ms: int
    epoch: int
    vain_claims: int = 0
    line: int = 0
    unserved: tuple[str, ...] = ()
    is_stalled: bool = False
    times: Mapping[str, int] = field(default_factory=dict)
    num_rows: int = 0
    num_done: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    outcome: BatchOutcome | None = None
    sealed: tuple[SealedPart, ...] = ()
    errors: tuple[LineError, ...] = ()
    output_file_id: str = ""
    error_file_id: str = ""

    @property
    def run_id(self) -> str:
        """The name of its run: part of the ids of its jobs."""
        return self.id.partition("_")[2]

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> "BatchRecord":
        known = {text(name): value for name, value in fields.items()}
        numbers = ("created_ms", "expires_ms", "epoch", "num_rows", "num_done", "num_failed")
        counts = ("vain_claims", "line", "prompt_tokens", "completion_tokens")
        words = ("id", "state", "input_name", "model", "output_file_id", "error_file_id")
        facts: dict[str, Any] = {name: int(known[name]) for name in (*numbers, *counts) if name in known}
        facts |= {name: text(known[name]) for name in words if name in known}
        return cls(
            request=BatchRequest.parse(known["asked"]),
            times={state: int(known[f"{state}_ms"]) for state in STATES if f"{state}_ms" in known},
            outcome=text(known["outcome"]) if "outcome" in known else None,  # type: ignore[arg-type]
            sealed=tuple(SealedPart(*one) for one in json.loads(known.get("sealed", b"[]"))),
            errors=tuple(LineError(*one) for one in json.loads(known.get("errors", b"[]"))),
            unserved=tuple(json.loads(known.get("unserved", b"[]"))),
            is_stalled=known.get("stalled") == b"1",
            **facts,
        )


#: How long the record of a batch is kept after its end.
ENDED_TTL_S = 30 * 86_400


class ClaimedBatch(NamedTuple):
    """A batch that the caller now runs, under the record's epoch. now_ms: the time by the clock of Redis."""

    record: BatchRecord
    now_ms: int


BatchRefusal = Literal["conflict", "no_file", "no_input", "elsewhere"]


@dataclass(frozen=True)
class BatchRecords(StorageKeys):
    """All calls for one tenant's batches, whose files lie in one storage."""

    def batch_key(self, batch_id: str) -> str:
        return self.key(f"{{{batch_id}}}:batch")

    @property
    def due_key(self) -> str:
        return f"herd:batches@{self.storage}"

    def _keys_of(self, batch_id: str) -> dict[str, str]:
        """What the scripts about one batch need of it, by their names."""
        return {"batch": self.batch_key(batch_id), "due": self.due_key, "member": self.member(batch_id)}

    def create(
        self, batch_id: str, request: BatchRequest, window_ms: int, most: int = 0, webhook_secret: str = ""
    ) -> RedisCall[BatchRecord | QuotaExceeded | BatchRefusal]:
        """Accept a batch. Repeating it, by whichever key of the tenant, changes nothing.

        most: batches that the tenant may have; 0: any.
        webhook_secret: what its webhook is signed with; the record keeps it until the end.
        """
        return call(
            "batch_create",
            partial(_read_created, request),
            **self._keys_of(batch_id),
            batches=self.key("stored_batches"),
            input=self.file_key(request.input_file_id),
            id=batch_id,
            window_ms=window_ms,
            own_storage=self.storage,
            asked=request.to_json(),
            most=most,
            **around_id(self.batch_key),
            secret=webhook_secret,
        )

    def get(self, batch_id: str) -> RedisCall[BatchRecord | None]:
        """A batch's record."""
        key = (self.batch_key(batch_id),)
        return RedisCall(
            "HGETALL", key, (), lambda reply: BatchRecord.from_fields(fields_of(reply)) if reply else None
        )

    def page(self, after: str, limit: int) -> RedisCall[RecordPage | None]:
        """Batches after one of them, the newest first; None if there is no such one."""
        return records_page(self, "batch", after, limit, "desc")

    def cancel(self, batch_id: str) -> RedisCall[BatchRecord | BatchState | None]:
        """Let its feeder end a batch early. Answers its state if that is too late; None: no such batch."""
        return call("batch_cancel", _read_cancelled, batch=self.batch_key(batch_id))

    def claim(self, batch_id: str, lease_ms: int) -> RedisCall[ClaimedBatch | None]:
        """Take a batch that is due; None if another feeder has it."""
        return call(
            "batch_claim",
            _read_claimed,
            **self._keys_of(batch_id),
            lease_ms=lease_ms,
        )

    def note(
        self, batch_id: str, epoch: int, lease_ms: int, state: BatchState | None = None, **fields: Argument
    ) -> RedisCall[BatchState | None]:
        """Renew the lease, enter a state, note what is known. None: another feeder has it, or it is over.

        A batch that is to be cancelled enters no other state. lease_ms 0: give it back.
        """
        return call(
            "batch_note",
            _read_noted,
            **self._keys_of(batch_id),
            epoch=epoch,
            lease_ms=lease_ms,
            entered=state,
            fields=fields,
        )

    def survive(self, batch_id: str) -> RedisCall[None]:
        """Note that the batch has not stopped a feeder that had taken it, whoever has it now."""
        return call("batch_survive", lambda reply: None, batch=self.batch_key(batch_id))

    def start(
        self, record: BatchRecord, lease_ms: int, num_rows: int, model: str, rows: Quota
    ) -> RedisCall[BatchState | QuotaExceeded | None]:
        """Let a batch run whose input is valid, within the quota of rows. None: another feeder has it."""
        return call(
            "batch_start",
            lambda reply: QuotaExceeded.from_reply(reply[1:]) if reply[0] == b"full" else _read_noted(reply),
            **self._keys_of(record.id),
            quota=self.key("quota"),
            epoch=record.epoch,
            lease_ms=lease_ms,
            num_rows=num_rows,
            model=model,
            owner=record.request.owner,
            **rows.named("most"),
        )

    def end(
        self, record: BatchRecord, final: BatchState, files: Sequence[NewFile] = (), **fields: Argument
    ) -> RedisCall[bool]:
        """End a batch, record its files, note its webhook, all at once. False: another feeder has it."""
        return call(
            "batch_end",
            lambda reply: reply == b"ok",
            **self._keys_of(record.id),
            input=self.file_key(record.request.input_file_id),
            files=self.key("stored_files"),
            quota=self.key("quota"),
            files_due=self.files_due_key,
            **self.outbox_keys,
            epoch=record.epoch,
            final=final,
            owner=record.request.owner,
            ttl_s=ENDED_TTL_S,
            storage=self.storage,
            life_ms=record.request.files_life_ms,
            batch_id=record.id,
            hook=record.request.webhook,
            made=[
                {
                    "file": self.file_key(one.id),
                    "id": one.id,
                    "member": self.member(one.id),
                    "name": one.name,
                    "num_bytes": one.num_bytes,
                }
                for one in files
            ],
            fields=fields,
        )

    def num_open(self) -> RedisCall[int]:
        """How many batches of all tenants in this storage have not ended, or have parts to delete."""
        return RedisCall("ZCARD", (self.due_key,), (), int)

    def note_cleaned(self, batch_id: str) -> RedisCall[None]:
        """Note that nothing is left to be done for an ended batch."""
        return RedisCall("ZREM", (self.due_key,), (self.member(batch_id),), lambda reply: None)


def _read_created(request: BatchRequest, reply: list[Any]) -> BatchRecord | QuotaExceeded | BatchRefusal:
    kind, *rest = reply
    if kind == b"full":
        return QuotaExceeded.from_reply(rest)
    if kind != b"ok":
        return text(kind)  # type: ignore[return-value]
    made = BatchRecord.from_fields(fields_of(rest[0]))
    return made if made.request == replace(request, owner=made.request.owner) else "conflict"


def _read_claimed(reply: list[Any]) -> ClaimedBatch | None:
    kind, *rest = reply
    return ClaimedBatch(BatchRecord.from_fields(fields_of(rest[1])), rest[0]) if kind == b"yours" else None


def _read_noted(reply: list[Any]) -> BatchState | None:
    return text(reply[1]) if reply[0] == b"ok" else None  # type: ignore[return-value]


def _read_cancelled(reply: list[Any]) -> BatchRecord | BatchState | None:
    kind, *rest = reply
    if kind == b"over":
        return text(rest[0])  # type: ignore[return-value]
    return BatchRecord.from_fields(fields_of(rest[0])) if kind == b"ok" else None
