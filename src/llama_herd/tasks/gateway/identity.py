"""The caller of a request: a bearer key says for which tenant, and in which role.

Without a key nobody is let in, however many keys there are, unless HERD_GATEWAY_OPEN says so: then everybody
on this machine may call. A page in a browser on this machine is somebody else, too, and so is what a proxy
has sent on. Clients of OpenAI's API show a key always: to an open gateway one that is not known is none.
"""

import logging
from contextlib import suppress
from datetime import UTC, datetime
from time import time
from typing import NamedTuple

from starlette.requests import Request

from llama_herd.errors import FieldError, InvalidJob, RecordUnreadable, RedisUnavailable
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.gateway.origin import is_forwarded, names_loopback, origin_host
from llama_herd.tasks.gateway.problem import PASSES, Problem
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.stored_api_keys import num_keys
from llama_herd.tasks.protocol.priority import MAX_PRIORITY
from llama_herd.tasks.security.api_keys import KeyRole, known_key

log = logging.getLogger(__name__)

#: No key that we make is longer.
MAX_KEY_CHARS = 256
NO_KEYS = "there are no keys, so nobody may call. Fix: herd keys create NAME"


class Caller(NamedTuple):
    """The sender of a request: its tenant and rights. fingerprint, name: of its key; None: it has none."""

    tenant: str
    role: KeyRole
    fingerprint: str | None
    name: str | None
    max_priority: int = MAX_PRIORITY

    def check_priority(self, priority: int) -> None:
        """Raise InvalidJob if the caller's jobs may not have this priority."""
        if priority > self.max_priority:
            message = (
                f"must be at most {self.max_priority}, which is all that this key allows, got {priority}"
            )
            raise InvalidJob([FieldError("priority", message)])


class Authenticator:
    """Finds the caller of each request by its key.

    It keeps none, so a revoked or expired key is out at once.
    """

    def __init__(self, settings: GatewaySettings, connections: SharedConnections) -> None:
        self._settings = settings
        self._connections = connections
        self._has_warned = False

    async def admit(self, request: Request, needs: KeyRole) -> Caller:
        """Identify the caller of a request, and check its role.

        Raises Problem: 401 without a valid key, 403 if the key's role is too small, 503 if there are no keys.
        """
        _check_origin(request, self._settings)
        caller = await self._caller_of(request)
        if caller is None:
            await self._check_any_keys()
            raise _unknown_key(request)
        if caller.fingerprint is None:
            _check_host(request)
        if not caller.role.may(needs):
            message = f"this needs a key of the role {needs}, but yours has the role {caller.role}"
            raise Problem(403, "forbidden", message)
        return caller

    async def check_key(self, request: Request, *, needs_any: bool = False) -> None:
        """Raise Problem if the request shows a wrong key, and Redis is there to say so.

        needs_any: also if there are no keys.
        """
        with suppress(RedisUnavailable):
            if await self._caller_of(request) is None:
                if needs_any:
                    await self._check_any_keys()
                if _shown_key(request):
                    raise _unknown_key(request)

    async def _caller_of(self, request: Request) -> Caller | None:
        """The caller; None if the request shows no key that is known, and needs one.

        Raises Problem for a key whose entry cannot be read: its holder must not become somebody else.
        """
        shown = _shown_key(request)
        caller = await self._holder_of(shown) if shown else None
        if caller is None and self._settings.gateway_open and not is_forwarded(request.headers):
            caller = Caller(self._settings.tenant, KeyRole.OPERATOR, None, None)
        if caller is not None:
            facts = facts_of(request.scope)
            facts.key, facts.tenant = caller.name, caller.tenant
        return caller

    async def _holder_of(self, shown: str) -> Caller | None:
        """Who holds this key; None if it is not known. Raises Problem for one that opens nothing any more."""
        try:
            key = await self._connections.run(known_key(shown))
        except RecordUnreadable as error:
            problem = _unauthorized("what is stored of this key cannot be read")
            problem.cause = str(error)
            raise problem from None
        if key is None:
            return None
        if key.has_expired(int(1000 * time())):
            end = datetime.fromtimestamp(max(0, key.expires_ms or 0) / 1000, UTC)
            raise _unauthorized(f"this key expired at {end:%Y-%m-%d %H:%M} UTC", "expired_api_key")
        if key.role not in list(KeyRole):
            raise _unauthorized("this gateway does not know the role of this key")
        return Caller(key.tenant, KeyRole(key.role), key.fingerprint, key.name, key.max_priority)

    async def _check_any_keys(self) -> None:
        """Raise Problem if there are none: an empty Redis must let nobody in. The log says so once."""
        is_closed = not await self._connections.run(num_keys())
        if is_closed and not self._has_warned:
            log.warning("closed: %s", NO_KEYS)
        self._has_warned = is_closed
        if is_closed:
            raise Problem(503, "no_keys", NO_KEYS, headers=PASSES)


def _unauthorized(what: str, code: str = "invalid_api_key") -> Problem:
    return Problem(401, code, what, headers={"WWW-Authenticate": "Bearer"})


def _unknown_key(request: Request) -> Problem:
    """The problem of a request that shows no key, or one that is not known."""
    if _shown_key(request):
        return _unauthorized("this key is not known")
    return _unauthorized("a key is needed: Authorization: Bearer herd-...")


def _shown_key(request: Request) -> str:
    """The key that a request shows, or whatever else stands in its place."""
    shown = request.headers.get("authorization", "").strip()
    scheme, _, key = shown.partition(" ")
    return (key.strip() if scheme.lower() == "bearer" else shown)[:MAX_KEY_CHARS]


def _check_origin(request: Request, settings: GatewaySettings) -> None:
    """Refuse other sites' pages: a browser lets them send requests, though not read the answers."""
    origin = request.headers.get("origin")
    if origin is None or origin in settings.origins:
        return
    if not origin_host(origin) or origin_host(origin) != request.headers.get("host"):
        raise Problem(403, "foreign_origin", "pages of this origin may not call. Fix: HERD_GATEWAY_ORIGINS")


def _check_host(request: Request) -> None:
    """Refuse a name that somebody else's DNS points at this machine."""
    if not names_loopback(request.headers.get("host", "")):
        raise Problem(403, "foreign_host", "without a key only localhost and 127.0.0.1 may be called")
