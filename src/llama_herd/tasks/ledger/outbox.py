"""The outbox: webhooks that are still to be sent, and those that were given up.

An entry is written by the script that writes a job's end, and removed when its receiver has it or the job is
purged. It has ids and states, and never a text of the job; and the secret that the job has brought, if any.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from llama_herd.errors import RecordUnreadable
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import score_number, text
from llama_herd.tasks.ledger.script_call import call

#: The keys of what waits and of what was given up.
_LISTS = {"waiting": "outbox", "dead": "outbox:dead"}
_OPTIONAL_FIELDS = ("finish_reason", "url", "error", "secret")
#: No time and no number of tries that we write is this large.
_TOO_LARGE = 2**53


@dataclass(frozen=True, slots=True)
class WebhookEntry:
    """A webhook to be sent. url, secret: where, and what signs it, if not the tenant's.

    tries: those that failed; error: the last.
    """

    message: str
    type: str
    id: str
    state: str
    ended_ms: int
    tries: int = 0
    finish_reason: str | None = None
    url: str | None = None
    error: str | None = None
    secret: str | None = field(default=None, repr=False)

    def failed(self, error: str) -> "WebhookEntry":
        """The entry after one more failed try."""
        return replace(self, tries=self.tries + 1, error=error)

    def to_json(self) -> str:
        facts = {name: value for name, value in asdict(self).items() if value is not None}
        del facts["message"]
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def parse(cls, message: bytes, raw: bytes) -> Self:
        """Raises RecordUnreadable for what we have not written."""
        name = text(message)
        try:
            facts = json.loads(raw)
            given = {fact: str(facts[fact]) for fact in _OPTIONAL_FIELDS if fact in facts}
            words = {fact: str(facts[fact]) for fact in ("type", "id", "state")}
            ended_ms, tries = int(facts["ended_ms"]), int(facts["tries"])
            if not (0 <= ended_ms < _TOO_LARGE and 0 <= tries < _TOO_LARGE):
                raise ValueError  # producers may write entries, and such a number breaks what reckons with it
            return cls(name, ended_ms=ended_ms, tries=tries, **words, **given)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise RecordUnreadable(f"the webhook {name} cannot be read") from None


@dataclass(frozen=True, slots=True)
class ListedWebhook:
    """An entry of the outbox or of its dead. at_ms: when it is due, or was given up."""

    entry: WebhookEntry
    at_ms: int
    is_dead: bool


@dataclass(frozen=True)
class Outbox(Keys):
    """All calls for one tenant's outbox."""

    def due(self, limit: int, again_ms: int) -> RedisCall[list[WebhookEntry]]:
        """At most `limit` webhooks that are due. They are due again after `again_ms`, unless settled."""
        keys = self.keys_named("outbox", "outbox_entries")
        return call("outbox_due", _read_due, **keys, most=limit, again_ms=again_ms)

    def sent(self, entry: WebhookEntry) -> RedisCall[None]:
        """Forget a webhook that its receiver has."""
        return self._settle(entry, "sent")

    def put_off(self, entry: WebhookEntry, for_ms: int) -> RedisCall[None]:
        """Let a webhook be due in `for_ms`."""
        return self._settle(entry, "later", for_ms)

    def give_up(self, entry: WebhookEntry) -> RedisCall[None]:
        """Give a webhook up: it is sent no more, unless somebody retries it."""
        return self._settle(entry, "dead")

    def _settle(self, entry: WebhookEntry, outcome: str, for_ms: int = 0) -> RedisCall[None]:
        return call(
            "outbox_settle",
            lambda reply: None,
            **self._all,
            message=entry.message,
            outcome=outcome,
            in_ms=for_ms,
            entry=entry.to_json(),
        )

    def retry(self, messages: Sequence[str | bytes]) -> RedisCall[int]:
        """Let dead webhooks be due now; how many of them were dead. Unreadable ones are forgotten."""
        return call("outbox_retry", int, **self._all, messages=messages)

    def message_ids(
        self, which: Literal["waiting", "dead"], limit: int
    ) -> RedisCall[list[tuple[bytes, int]]]:
        """Ids of webhooks that wait or were given up, with the time at which they are due or were that."""
        return RedisCall("ZRANGE", (self.key(_LISTS[which]),), (0, limit - 1, "WITHSCORES"), _read_scores)

    def count(self, which: Literal["waiting", "dead"]) -> RedisCall[int]:
        return RedisCall("ZCARD", (self.key(_LISTS[which]),), (), int)

    def entries(self, messages: Sequence[bytes]) -> RedisCall[list[bytes | None]]:
        """The entries of messages; None for one that is gone."""
        return RedisCall("HMGET", (self.key("outbox:entries"),), messages, list)

    def forget(self) -> RedisCall[int]:
        """Forget all of it."""
        return RedisCall("DEL", tuple(self._all.values()), (), int)

    @property
    def _all(self) -> dict[str, str]:
        return self.keys_named("outbox", "outbox_entries", "outbox_dead")


def webhook_message_id(job_id: str) -> str:
    """Id of the webhook of a job's end, as `outbox.lua` writes it."""
    return f"msg_{job_id.replace('.', '~')}"


def _read_due(reply: list[bytes]) -> list[WebhookEntry]:
    """One that cannot be read is left out: it is due again and again, until its job is purged."""
    found = list[WebhookEntry]()
    for message, raw in zip(reply[::2], reply[1::2], strict=True):
        try:
            found.append(WebhookEntry.parse(message, raw))
        except RecordUnreadable:
            continue
    return found


def _read_scores(reply: list[Any]) -> list[tuple[bytes, int]]:
    pairs = (
        reply if reply and isinstance(reply[0], list | tuple) else zip(reply[::2], reply[1::2], strict=True)
    )
    return [(message, score_number(score)) for message, score in pairs]
