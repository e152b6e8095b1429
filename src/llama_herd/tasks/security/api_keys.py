"""Keys for the gateway: made here, shown once, and kept as SHA-256."""

import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from time import time

from llama_herd.errors import BadInput
from llama_herd.tasks.ledger.stored_api_keys import (
    ApiKey,
    StoredKeys,
    all_keys,
    drop_key,
    find_key,
    store_key,
)
from llama_herd.tasks.protocol.priority import MAX_PRIORITY, MIN_PRIORITY
from llama_herd.tasks.settings import TENANT_PATTERN

#: Of each key that we make, so that a person and a scanner of secrets know what it is.
PREFIX = "herd-"
KEY_BYTES = 32
#: Hex digits of the SHA-256 by which a key is found. They tell nothing of the key.
FINGERPRINT_CHARS = 16
#: Longest life of a key that expires.
MAX_LIFE_S = 315_360_000

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


class KeyRole(StrEnum):
    """A key's role: the actions that its holder may take in the tenant."""

    #: Reads jobs whose ids it knows, and the models.
    SUBSCRIBER = "subscriber"
    #: Also submits and cancels.
    PRODUCER = "producer"
    #: Also purges, pauses queues and drains workers.
    OPERATOR = "operator"

    def may(self, what: "KeyRole") -> bool:
        """Whether the role includes another one."""
        roles = list(KeyRole)
        return roles.index(self) >= roles.index(what)


async def create_key(
    name: str,
    tenant: str,
    role: KeyRole,
    max_priority: int = MAX_PRIORITY,
    expires_s: float | None = None,
) -> str:
    """Store a new key and return it: nobody can see it again. Raises BadInput, also if the name is taken.

    expires_s: after so many seconds it opens nothing; None: it does not expire.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"key {name!r}: the name must be 1 to 64 letters, digits, dots, dashes, underscores or @"
        )
    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise BadInput(f"tenant {tenant!r}: must be 1 to 64 letters, digits, underscores or dashes")
    if not MIN_PRIORITY <= max_priority <= MAX_PRIORITY:
        raise BadInput(f"max-priority {max_priority}: must be {MIN_PRIORITY} to {MAX_PRIORITY}")
    if expires_s is not None and not 1 <= expires_s <= MAX_LIFE_S:
        raise BadInput(f"expires {expires_s:g} s: must be 1 to {MAX_LIFE_S} s, which are ten years")
    stored: StoredKeys = await all_keys()
    if any(other.name == name for other in stored.keys):
        raise BadInput(f"key {name}: there is one of this name. Fix: revoke it, or choose another name")
    secret = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    digest = _digest(secret)
    now_ms = int(1000 * time())
    expires_ms = None if expires_s is None else now_ms + round(1000 * expires_s)
    facts = (digest, name, tenant, role, now_ms, max_priority, expires_ms)
    await store_key(ApiKey(digest[:FINGERPRINT_CHARS], *facts))
    return secret


async def known_key(secret: str) -> ApiKey | None:
    """Find the stored key of a secret; None if it is not one of ours. It may have expired.

    Raises RecordUnreadable.
    """
    digest = _digest(secret)
    fingerprint = digest[:FINGERPRINT_CHARS]
    raw: bytes | None = await find_key(fingerprint)
    if raw is None:
        return None
    key = ApiKey.parse(fingerprint, raw)
    return key if hmac.compare_digest(key.digest.encode(), digest.encode()) else None


async def revoke_key(name: str) -> str:
    """Forget a key, given by its name or its fingerprint, and return its name.

    Raises BadInput if there is none.
    """
    stored: StoredKeys = await all_keys()
    named = {fingerprint: fingerprint for fingerprint in stored.unreadable}
    named |= {key.fingerprint: key.name for key in stored.keys}
    found = next((fingerprint for fingerprint, known in named.items() if name in (known, fingerprint)), None)
    if found is None:
        raise BadInput(f"key {name}: there is none. Fix: herd keys list")
    await drop_key(found)
    return named[found]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
