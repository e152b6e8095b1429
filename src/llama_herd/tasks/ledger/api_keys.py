"""The keys by which others come in at the gateway: one hash for all tenants, without the keys themselves."""

import json
from dataclasses import dataclass

from llama_herd.tasks.ledger.redis_call import Call
from llama_herd.tasks.ledger.replies import text

#: Redis key of the hash. Its fields are fingerprints. No tenant's key has this name, which has one colon.
API_KEYS = "herd:keys"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is stored of a key. digest: its SHA-256. fingerprint: how that begins, by which it is found."""

    fingerprint: str
    digest: str
    name: str
    tenant: str
    role: str
    created_ms: int

    def to_json(self) -> str:
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "fingerprint"}
        return json.dumps({"v": 1, **facts})

    @classmethod
    def parse(cls, fingerprint: str, raw: bytes) -> "ApiKey":
        """Raises ValueError, KeyError or TypeError for what we have not written."""
        facts = json.loads(raw)
        words = {name: str(facts[name]) for name in ("digest", "name", "tenant", "role")}
        return cls(fingerprint, created_ms=int(facts["created_ms"]), **words)


def store_key(key: ApiKey) -> Call[bool]:
    """Store a key. Answers whether it is a new one."""
    return Call("HSETNX", (API_KEYS,), (key.fingerprint, key.to_json()), bool)


def find_key(fingerprint: str) -> Call[ApiKey | None]:
    """The key of a fingerprint."""
    return Call(
        "HGET",
        (API_KEYS,),
        (fingerprint,),
        lambda reply: None if reply is None else ApiKey.parse(fingerprint, reply),
    )


def num_keys() -> Call[int]:
    """How many keys there are."""
    return Call("HLEN", (API_KEYS,), (), int)


def all_keys() -> Call[list[ApiKey]]:
    """Every key, the oldest first."""
    return Call("HGETALL", (API_KEYS,), (), _read_keys)


def drop_key(fingerprint: str) -> Call[bool]:
    """Forget a key. Answers whether there was one."""
    return Call("HDEL", (API_KEYS,), (fingerprint,), bool)


def _read_keys(reply: dict[bytes, bytes] | list[bytes]) -> list[ApiKey]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    found = [ApiKey.parse(text(fingerprint), raw) for fingerprint, raw in pairs]
    return sorted(found, key=lambda key: (key.created_ms, key.name))
