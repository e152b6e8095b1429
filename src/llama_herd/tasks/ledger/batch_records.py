"""The records of batches that gateways run: asked for over HTTP, fed by whichever gateway is there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Argument, Call, Script
from llama_herd.tasks.ledger.replies import fields_of, text
from llama_herd.tasks.ledger.stored_files import Due, Full, NewFile, Page, Quota, listing

_CREATE = Script("batch_create", "clock")
_CLAIM = Script("batch_claim", "clock")
_NOTE = Script("batch_note", "clock", "batch")
_START = Script("batch_start", "clock", "batch", "quota")
_END = Script("batch_end", "clock", "batch", "quota", "file", "outbox")
_CANCEL = Script("batch_cancel", "clock", "batch")
SCRIPTS = (_CREATE, _CLAIM, _NOTE, _START, _END, _CANCEL)

#: How long the record of a batch is kept after its end.
ENDED_TTL_S = 30 * 86_400

State = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
#: How a batch ends that has begun.
Outcome = Literal["completed", "expired", "cancelled"]
FINAL = frozenset({"completed", "failed", "expired", "cancelled"})
STATES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's request for a batch. window: as the client wrote it. owner: fingerprint of its key.

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
        return json.dumps({"v": 1, **asdict(self)}, sort_keys=True)

    @classmethod
    def parse(cls, raw: bytes) -> "Asked":
        facts = json.loads(raw)
        return cls(**{name: facts[name] for name in cls.__slots__ if name in facts})


class Sealed(NamedTuple):
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
    """

    id: str
    asked: Asked
    state: State
    input_name: str
    created_ms: int
    expires_ms: int
    epoch: int
    times: Mapping[str, int] = field(default_factory=dict)
    num_rows: int = 0
    num_done: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    outcome: Outcome | None = None
    sealed: tuple[Sealed, ...] = ()
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
    def of(cls, fields: Mapping[bytes, bytes]) -> "BatchRecord":
        known = {text(name): value for name, value in fields.items()}
        numbers = ("created_ms", "expires_ms", "epoch", "num_rows", "num_done", "num_failed")
        tokens = ("prompt_tokens", "completion_tokens")
        words = ("id", "state", "input_name", "model", "output_file_id", "error_file_id")
        facts: dict[str, Any] = {name: int(known[name]) for name in (*numbers, *tokens) if name in known}
        facts |= {name: text(known[name]) for name in words if name in known}
        return cls(
            asked=Asked.parse(known["asked"]),
            times={state: int(known[f"{state}_ms"]) for state in STATES if f"{state}_ms" in known},
            outcome=text(known["outcome"]) if "outcome" in known else None,  # type: ignore[arg-type]
            sealed=tuple(Sealed(*one) for one in json.loads(known.get("sealed", b"[]"))),
            errors=tuple(LineError(*one) for one in json.loads(known.get("errors", b"[]"))),
            **facts,
        )


class Claimed(NamedTuple):
    """A batch that the caller has now, under the record's epoch. now_ms: the time by the clock of Redis."""

    record: BatchRecord
    now_ms: int


Refusal = Literal["conflict", "no_file", "no_input", "elsewhere"]


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
        return Due(self.tenant, name).member

    def _file_key(self, file_id: str) -> str:
        return self.key(f"{{{file_id}}}:file")

    def create(
        self, batch_id: str, asked: Asked, window_ms: int, most: int = 0, webhook_secret: str = ""
    ) -> Call[BatchRecord | Full | Refusal]:
        """Accept a batch. Repeating it changes nothing. most: batches that the tenant may have; 0: any.

        webhook_secret: what its webhook is signed with; the record keeps it until the end.
        """
        start, _, end = self.batch_key("\0").partition("\0")
        return Call(
            _CREATE,
            (
                *(self.batch_key(batch_id), self.key("stored_batches")),
                *(self._file_key(asked.input_file_id), self.due_key),
            ),
            (
                *(batch_id, self._member(batch_id), window_ms, self.storage, asked.to_json()),
                *(most, start, end, webhook_secret),
            ),
            _read_created,
        )

    def get(self, batch_id: str) -> Call[BatchRecord | None]:
        """A batch's record."""
        return Call("HGETALL", (self.batch_key(batch_id),), (), _read_batch)

    def page(self, after: str, limit: int) -> Call[Page | None]:
        """Batches after one of them, the newest first; None if there is no such one."""
        return listing(self, "stored_batches", "batch", (after, limit, "desc", "", 0))

    def cancel(self, batch_id: str) -> Call[BatchRecord | State | None]:
        """Let its feeder end a batch early. Answers its state if that is too late; None: no such batch."""
        return Call(_CANCEL, (self.batch_key(batch_id),), (), _read_cancelled)

    def claim(self, batch_id: str, lease_ms: int) -> Call[Claimed | None]:
        """Take a batch that is due; None if another feeder has it."""
        return Call(
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
        state: State | None = None,
        fields: Mapping[str, Argument] | None = None,
    ) -> Call[State | None]:
        """Renew the lease, enter a state, note what is known. None: another feeder has it, or it is over.

        A batch that is to be cancelled enters no other state. lease_ms 0: give it back.
        """
        pairs = [part for pair in (fields or {}).items() for part in pair]
        return Call(
            _NOTE,
            (self.batch_key(batch_id), self.due_key),
            (self._member(batch_id), epoch, lease_ms, state or "", *pairs),
            _read_noted,
        )

    def start(
        self, record: BatchRecord, lease_ms: int, num_rows: int, model: str, rows: Quota
    ) -> Call[State | Full | None]:
        """Let a batch run whose input is valid, within the quota of rows. None: another feeder has it."""
        return Call(
            _START,
            (self.batch_key(record.id), self.due_key, self.key("quota")),
            (
                *(self._member(record.id), record.epoch, lease_ms),
                *(num_rows, model, record.asked.owner, *rows),
            ),
            _read_started,
        )

    def end(
        self,
        record: BatchRecord,
        final: State,
        files: Sequence[NewFile] = (),
        fields: Mapping[str, Argument] | None = None,
    ) -> Call[bool]:
        """End a batch, record its files, note its webhook, all at once. False: another feeder has it."""
        pairs = [part for pair in (fields or {}).items() for part in pair]
        life_ms = "" if record.asked.files_life_ms is None else record.asked.files_life_ms
        facts = [part for one in files for part in (one.id, self._member(one.id), one.name, one.num_bytes)]
        return Call(
            _END,
            (
                *(self.batch_key(record.id), self.due_key, self._file_key(record.asked.input_file_id)),
                *(self.key("stored_files"), self.key("quota"), self._files_due_key),
                *self.outbox_keys,
                *(self._file_key(one.id) for one in files),
            ),
            (
                *(self._member(record.id), record.epoch, final, record.asked.owner, ENDED_TTL_S),
                *(self.storage, life_ms, record.id, record.asked.webhook, len(pairs), *pairs, *facts),
            ),
            lambda reply: reply == b"ok",
        )

    def num_open(self) -> Call[int]:
        """How many batches of all tenants the storage has to see to."""
        return Call("ZCARD", (self.due_key,), (), int)

    def cleaned(self, batch_id: str) -> Call[None]:
        """Note that an ended batch needs nobody any more."""
        return Call("ZREM", (self.due_key,), (self._member(batch_id),), lambda reply: None)


def _read_created(reply: list[Any]) -> BatchRecord | Full | Refusal:
    kind, *rest = reply
    if kind == b"full":
        return Full.of(rest)
    return BatchRecord.of(fields_of(rest[0])) if kind == b"ok" else text(kind)  # type: ignore[return-value]


def _read_batch(reply: Any) -> BatchRecord | None:
    fields = fields_of(reply)
    return BatchRecord.of(fields) if fields else None


def _read_claimed(reply: list[Any]) -> Claimed | None:
    kind, *rest = reply
    return Claimed(BatchRecord.of(fields_of(rest[1])), rest[0]) if kind == b"yours" else None


def _read_noted(reply: list[Any]) -> State | None:
    return text(reply[1]) if reply[0] == b"ok" else None  # type: ignore[return-value]


def _read_started(reply: list[Any]) -> State | Full | None:
    return Full.of(reply[1:]) if reply[0] == b"full" else _read_noted(reply)


def _read_cancelled(reply: list[Any]) -> BatchRecord | State | None:
    kind, *rest = reply
    if kind == b"over":
        return text(rest[0])  # type: ignore[return-value]
    return BatchRecord.of(fields_of(rest[0])) if kind == b"ok" else None
