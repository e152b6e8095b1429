"""What Redis replies to the ledger's calls, read into the ledger's answers."""

import base64
import json
from typing import Any

from llama_herd.tasks.answers import (
    Adopt,
    Busy,
    ClaimAnswer,
    DeadLetter,
    Emission,
    Emitted,
    Ended,
    Record,
    Unknown,
    Yours,
)
from llama_herd.tasks.worker_status import WorkerStatus


def text(value: bytes) -> str:
    return value.decode()


def read_claim(reply: list[Any]) -> ClaimAnswer:
    kind = text(reply[0])
    match kind:
        case "yours" | "adopt":
            now_ms, epoch, n, seq, attempts, starts, submitted_ms = map(int, reply[1:8])
            claimed = Yours if kind == "yours" else Adopt
            return claimed(epoch, n, seq, attempts, starts, submitted_ms, text(reply[8]), now_ms)
        case "busy":
            return Busy(int(reply[1]))
        case "unknown":
            return Unknown()
        case _:
            return Ended(kind)


_WRITTEN = {b"ok": Emitted(Emission.OK), b"duplicate": Emitted(Emission.DUPLICATE)}


def read_emit(reply: list[Any]) -> list[Emitted]:
    return [
        _WRITTEN[answer]
        if isinstance(answer, bytes)
        else Emitted(Emission(text(answer[0])), answer[1], answer[2], text(answer[3]))
        for answer in reply
    ]


def read_record(fields: dict[str, bytes | None]) -> Record | None:
    if fields["state"] is None:
        return None
    texts = {name: None if value is None else value.decode() for name, value in fields.items()}
    numbers = ("epoch", "seq", "n", "attempts", "starts", "submitted_ms", "deadline_ms")
    values = {name: int(text) if text and name in numbers else text for name, text in texts.items()}
    return Record(**values)  # type: ignore[arg-type]


def read_workers(reply: list[list[bytes]]) -> list[WorkerStatus]:
    texts = [[text(part) for part in flat] for flat in reply if flat]
    return [WorkerStatus.model_validate(dict(zip(flat[::2], flat[1::2], strict=True))) for flat in texts]


def read_letter(raw: bytes) -> DeadLetter:
    letter = json.loads(raw)
    return DeadLetter(**{**letter, "raw": base64.b64decode(letter["raw"])})
