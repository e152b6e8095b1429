"""The room of a server that several workers stand in front of: a suspect of one is alone there."""

import hashlib
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf
from time import monotonic
from typing import Self
from urllib.parse import urlsplit

import structlog
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from llama_herd.tasks.connection.temporary_errors import is_temporary, redis_message
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.shared_servers import Entering, SharedServer, SharedServers
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: How soon a worker asks again that was not let in.
ASK_AGAIN_S = 0.05


@dataclass(eq=False)
class ServerRoom:
    """What this worker knows of a server's other workers, of the same tenants. Its gate alone calls it.

    It holds as long as Redis is reached: a worker that is silent for a lease counts as gone.
    """

    redis: Redis
    owner: str
    servers: SharedServers
    server: str  # its id
    life_ms: int
    has_jobs: bool = field(init=False, default=False)  # of this worker; the others know it
    taken_s: float | None = field(init=False, default=None)  # since when another worker has it alone
    _refused_s: float = field(init=False, default=-inf)
    _has_complained: bool = field(init=False, default=False)

    @classmethod
    def of(cls, settings: WorkerSettings, redis: Redis, owner: str) -> Self:
        """The room of the server at HERD_ENGINE_URL."""
        servers = SharedServers(settings.joint_tenant)
        return cls(redis, owner, servers, server_id(settings.engine_url), settings.lease_ms)

    def enter(self, *, must_be_alone: bool, is_closed: bool) -> bool:
        """Whether a job may be sent there now; not while Redis is away.

        is_closed: others have to leave for it.
        """
        if self.has_jobs and self.taken_s is None and not must_be_alone:
            return True
        if monotonic() - self._refused_s < ASK_AGAIN_S:
            return False
        may_enter = False
        with suppress(RedisError):
            may_enter = self._share(is_closed, "alone" if must_be_alone else "any").may_enter
        self._refused_s = -inf if may_enter else monotonic()
        return may_enter

    def keep(self, *, has_jobs: bool, is_closed: bool) -> None:
        """Tell the others what is so, and hear of them; about once a second. Raises RedisError."""
        if has_jobs or self.has_jobs or is_closed or self.taken_s is not None:
            self.has_jobs = has_jobs
            self._share(is_closed)

    def _share(self, is_closed: bool, enters: Entering = None) -> SharedServer:
        share = self.servers.share(
            self.server, self.owner, self.life_ms, has_jobs=self.has_jobs, is_alone=is_closed, enters=enters
        )
        try:
            found = run_call(self.redis, share)
        except ResponseError as error:
            if is_temporary(error):
                raise
            found = self._without_others(error)
        self.has_jobs = self.has_jobs or found.may_enter
        self.taken_s = (self.taken_s or monotonic()) if found.is_taken else None
        return found

    def _without_others(self, error: ResponseError) -> SharedServer:
        """Jobs go on though the others cannot be asked, as in a worker that is the only one."""
        if not self._has_complained:
            reason = redis_message(error)
            log.error("a suspect may not be alone in the engine's server", server=self.server, error=reason)
        self._has_complained = True
        return SharedServer(may_enter=True, is_taken=False)


def server_id(url: str) -> str:
    """The same for all workers that name a server alike. A loopback address is of one machine alone."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    address = _address_in(host)
    is_here = host == "localhost" if address is None else address.is_loopback or address.is_unspecified
    place = f"localhost of {socket.gethostname()}" if is_here else str(address or host)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return hashlib.sha256(f"{place} {port} {parts.path.rstrip('/')}".encode()).hexdigest()[:16]


def _address_in(host: str) -> IPv4Address | IPv6Address | None:
    """The address that is written there, in any of the ways that the system reads; None: it is a name."""
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
        address = ip_address(found[0][4][0])
    except (OSError, ValueError):
        return None
    return getattr(address, "ipv4_mapped", None) or address
