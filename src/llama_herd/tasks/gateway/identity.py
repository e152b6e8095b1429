"""Who is calling: a bearer key says for which tenant, and in which role.

As long as there are no keys, everybody on this machine may call, and nobody else: `serve` listens at no other
address then. A page in a browser on this machine is somebody else, too.
"""

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from llama_herd.tasks.gateway.desk import Desks
from llama_herd.tasks.gateway.errors import Problem
from llama_herd.tasks.ledger.api_keys import num_keys
from llama_herd.tasks.ledger.redis_call import ask
from llama_herd.tasks.security.api_keys import KeyRole, known_key

#: No key that we make is longer.
MAX_KEY_CHARS = 256


class Caller(NamedTuple):
    """Who may do what for a request."""

    tenant: str
    role: KeyRole


def is_loopback(host: str) -> bool:
    """Whether this address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def caller_of(request: Request, desks: Desks, needs: KeyRole) -> Caller:
    """Who sends a request. Raises Problem: 401 without a valid key, 403 if the key's role is too small."""
    _check_origin(request, desks)
    found = await _identify(request, desks)
    if not found.role.may(needs):
        raise Problem(
            403, "forbidden", f"this needs a key of the role {needs}, but yours has the role {found.role}"
        )
    return found


async def _identify(request: Request, desks: Desks) -> Caller:
    shown = _shown_key(request)
    if shown:
        key = await desks.line.run(known_key(shown))
        if key is not None and key.role in list(KeyRole):
            return Caller(key.tenant, KeyRole(key.role))
    if is_loopback(desks.settings.gateway_host) and not await desks.line.run(ask(num_keys())):
        _check_host(request)
        return Caller(desks.settings.tenant, KeyRole.OPERATOR)
    what = "this key is not known" if shown else "a key is needed: Authorization: Bearer herd-..."
    raise Problem(401, "invalid_api_key", what, headers={"WWW-Authenticate": "Bearer"})


def _shown_key(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip()[:MAX_KEY_CHARS] if scheme.lower() == "bearer" else ""


def _check_origin(request: Request, desks: Desks) -> None:
    """Refuse other sites' pages: a browser lets them send requests, though not read the answers."""
    origin = request.headers.get("origin")
    if origin is None or origin in desks.settings.origins:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise Problem(403, "foreign_origin", "pages of this origin may not call. Fix: HERD_GATEWAY_ORIGINS")


def _check_host(request: Request) -> None:
    """Refuse a name that somebody else's DNS points at this machine."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if not is_loopback(host):
        raise Problem(403, "foreign_host", "without keys only localhost and 127.0.0.1 may be called")
