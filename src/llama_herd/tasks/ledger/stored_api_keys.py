"""What is stored of the gateway's API keys: one hash for all tenants, without the keys themselves."""

import json
from dataclasses import dataclass
from typing import NamedTuple, Self

from llama_herd.errors import RecordUnreadable
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import read_entries
from llama_herd.tasks.protocol.priority import MAX_PRIORITY

#: Redis key of the hash. Its fields are fingerprints. No tenant's key has this name, which has one colon.
API_KEYS = "herd:keys"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is stored. digest: its SHA-256. fingerprint: the digest's beginning, by which it is found.

    max_priority: the highest that its jobs may have. expires_ms: from then on it opens nothing; None: never.
    """

    fingerprint: str
    digest: str
    name: str
    tenant: str
    role: str
    created_ms: int
    max_priority: int = MAX_PRIORITY
    expires_ms: int | None = None

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def to_json(self) -> str:
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "fingerprint"}
        return json.dumps({"v": 1, **facts})

    @classmethod
    def parse(cls, fingerprint: str, raw: bytes) -> "ApiKey":
        """Read a stored key. Raises RecordUnreadable for what we have not written."""
        try:
            facts = json.loads(raw)
            words = {name: str(facts[name]) for name in ("digest", "name", "tenant", "role")}
            created_ms, max_priority = int(facts["created_ms"]), int(facts["max_priority"])
            expires_ms = None if facts["expires_ms"] is None else int(facts["expires_ms"])
            return cls(
                fingerprint,
                created_ms=created_ms,
                max_priority=max_priority,
                expires_ms=expires_ms,
                **words,
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise UnreadableKey.for_fingerprint(fingerprint) from None


class UnreadableKey(RecordUnreadable):
    """An entry of the hash is damaged, or was not written by llama-herd."""

    @classmethod
    def for_fingerprint(cls, fingerprint: str) -> Self:
        return cls(
            f"the entry {fingerprint} of {API_KEYS} is no key that this version has written. "
            f"Fix: herd keys revoke {fingerprint}, and make another key"
        )


class StoredKeys(NamedTuple):
    """All keys, the oldest first, and the fingerprints of entries that cannot be read."""

    keys: tuple[ApiKey, ...]
    unreadable: tuple[str, ...]

    @classmethod
    def parse(cls, reply: dict[bytes, bytes] | list[bytes]) -> Self:
        keys, unreadable = read_entries(reply, ApiKey.parse)
        return cls(tuple(sorted(keys, key=lambda key: (key.created_ms, key.name))), unreadable)


def store_key(key: ApiKey) -> RedisCall[bool]:
    """Store a key. Answers whether it is a new one."""
    return RedisCall("HSETNX", (API_KEYS,), (key.fingerprint, key.to_json()), bool)


def find_key(fingerprint: str) -> RedisCall[bytes | None]:
    """Look up the entry of the key with a fingerprint."""
    return RedisCall("HGET", (API_KEYS,), (fingerprint,), lambda reply: reply)


def num_keys() -> RedisCall[int]:
    """Count the stored keys."""
    return RedisCall("HLEN", (API_KEYS,), (), int)


def all_keys() -> RedisCall[StoredKeys]:
    """Read all stored keys."""
    return RedisCall("HGETALL", (API_KEYS,), (), StoredKeys.parse)


def drop_key(fingerprint: str) -> RedisCall[bool]:
    """Forget a key. Answers whether there was one."""
    return RedisCall("HDEL", (API_KEYS,), (fingerprint,), bool)
