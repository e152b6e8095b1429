"""The record of a batch that came over HTTP: what was asked for, its state, how far it is."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from llama_herd.tasks.ledger.replies import text

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
        return json.dumps({"v": 1, **asdict(self)}, sort_keys=True)

    @classmethod
    def parse(cls, raw: bytes) -> "BatchRequest":
        facts = json.loads(raw)
        return cls(**{name: facts[name] for name in cls.__slots__ if name in facts})


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
