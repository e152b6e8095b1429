"""Messages that could not be read, and jobs that were given up because their workers died."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from llama_herd.tasks.ledger.answers import DeadJob, DeadLetter, Revival
from llama_herd.tasks.ledger.keys import Keys, around_id
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import number, score_number, text
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.protocol.message import MessageHead
from llama_herd.tasks.settings import Settings

MAX_LETTERS = 1000
MAX_LETTER_BYTES = 65_536

_NUMBER = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


@dataclass(frozen=True)
class DeadLetters(Keys):
    """All calls for one tenant's dead letters and poisoned jobs.

    A letter contains a message as it came. Of poisoned jobs there is only a list here, the quarantine: their
    records and streams stay where they were, and live for `ttl_s`.
    """

    ttl_s: int = 604_800

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(settings.tenant, settings.dead_ttl_s)

    def bury(self, raw: bytes, *, queue: str, reason: str, worker: str) -> RedisCall[None]:
        """Keep a message that could not be read, cut to 64 KiB. Only the newest thousand are kept.

        worker: the one that puts it there.
        """
        head = MessageHead.find_in(raw)._asdict()
        letter: Mapping[str, Any] = {
            **{name: value for name, value in head.items() if value is not None},
            "reason": reason,
            "worker": worker,
            "queue": queue,
            "num_bytes": len(raw),
            "raw": raw[:MAX_LETTER_BYTES],
        }
        return call(
            "dead",
            lambda reply: None,
            **self.keys_named("dead"),
            most=MAX_LETTERS,
            ttl_s=self.ttl_s,
            fields=letter,
        )

    def letters(self, limit: int = 100) -> RedisCall[list[DeadLetter]]:
        """The newest dead letters."""
        return RedisCall(
            "XREVRANGE",
            (self.key("dead"),),
            ("+", "-", "COUNT", limit),
            lambda reply: [read_letter(*entry) for entry in reply],
        )

    def letter(self, number: str) -> RedisCall[DeadLetter | None]:
        """A dead letter by its number."""
        return RedisCall(
            "XRANGE",
            (self.key("dead"),),
            (number, number),
            lambda reply: read_letter(*reply[0]) if reply else None,
        )

    def revive(self, number: str) -> RedisCall[Revival]:
        """Push a letter back to the queue it came from, and delete the letter."""
        return call("revive", lambda reply: Revival(text(reply)), **self.keys_named("dead"), number=number)

    def drop(self, number: str) -> RedisCall[bool]:
        """Delete a letter; whether there was one."""
        return RedisCall("XDEL", (self.key("dead"),), (number,), bool)

    def jobs(self, limit: int = 100) -> RedisCall[list[DeadJob]]:
        """The poisoned jobs, the newest first, a thousand at most."""
        return call(
            "quarantine",
            lambda reply: [_dead_job(*row) for row in reply],
            **self.keys_named("quarantine"),
            most=min(limit, MAX_LETTERS),
            **around_id(self.job_key),
        )

    def is_quarantined(self, job_id: str) -> RedisCall[bool]:
        return RedisCall("ZSCORE", (self.key("quarantine"),), (job_id,), lambda reply: reply is not None)

    def unlist(self, job_id: str) -> RedisCall[bool]:
        """Take a job out of quarantine, since it runs again under another id; whether it was there."""
        return RedisCall("ZREM", (self.key("quarantine"),), (job_id,), bool)


def is_letter_number(text: object) -> bool:
    """Whether `text` can be the number of a dead letter."""
    return isinstance(text, str) and _NUMBER.fullmatch(text) is not None


def read_letter(entry_id: bytes, fields: Mapping[bytes, bytes]) -> DeadLetter:
    """Parse a letter, whatever others have written there."""
    head = {name: text(fields[name.encode()]) for name in MessageHead._fields if name.encode() in fields}
    return DeadLetter(
        number=text(entry_id),
        at_ms=number(entry_id.partition(b"-")[0]),
        reason=text(fields.get(b"reason", b"")),
        worker=text(fields.get(b"worker", b"")),
        queue=text(fields.get(b"queue", b"")),
        raw=fields.get(b"raw", b""),
        num_bytes=number(fields.get(b"num_bytes")),
        **head,
    )


def _dead_job(
    job_id: bytes, at_ms: bytes, worker: bytes | None, queue: bytes, attempts: bytes | None
) -> DeadJob:
    last_worker = None if worker is None else text(worker)
    return DeadJob(text(job_id), score_number(at_ms), last_worker, text(queue), number(attempts))
