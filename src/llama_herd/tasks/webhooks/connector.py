"""A connection to the host of a webhook: its address is checked, and no other is connected to.

A name is looked up once. So nobody can answer one address for the check and another one for the connection.
"""

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult

from llama_herd.tasks.webhooks.addresses import Address, is_private, is_public

#: A name's lookup holds a thread for as long as its name server does not answer.
_LOOKUPS = ThreadPoolExecutor(32, "webhook-lookup")
#: Most bytes of an answer that are read ahead.
_READ_AHEAD = 16_384
_TLS_CLOSE_S = 2.0
_PORTS = {"https": 443, "http": 80}


@cache
def _default_tls() -> ssl.SSLContext:
    """What the system trusts: hundreds of certificates, read once a process."""
    return ssl.create_default_context()


class AddressRefused(Exception):
    """The address may not be called, today or later."""


class Connector:
    """Connects to hosts of webhooks. tls: how certificates are checked."""

    def __init__(self, *, allows_private: bool, tls: ssl.SSLContext | None = None) -> None:
        self._allows_private = allows_private
        self._tls = tls or _default_tls()
        #: Under way, by host: a name server that does not answer takes one thread, however much waits for it.
        self._lookups: dict[str, asyncio.Future[list[Any]]] = {}

    async def connect(self, url: SplitResult) -> tuple[StreamReader, StreamWriter]:
        """A connection to the first address that takes one. Raises Refused and OSError."""
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        allowed = [one for one in await self._addresses(host) if self._is_allowed(one, url.scheme)]
        if not allowed:
            raise AddressRefused(_refusal(host, url.scheme))
        for address in allowed[:-1]:
            try:
                return await self._open(address, port, host, url.scheme)
            except OSError:
                continue
        return await self._open(allowed[-1], port, host, url.scheme)

    async def _addresses(self, host: str) -> list[Address]:
        """The addresses of a host. Raises OSError."""
        try:
            return [ip_address(host)]
        except ValueError:
            pass
        if host not in self._lookups:
            lookup = asyncio.get_running_loop().run_in_executor(_LOOKUPS, _look_up, host)
            self._lookups[host] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(host))
        found = await asyncio.shield(self._lookups[host])
        return list(dict.fromkeys(ip_address(place[0]) for *_, place in found))

    def _is_allowed(self, address: Address, scheme: str) -> bool:
        if is_private(address):
            return self._allows_private
        return is_public(address) and scheme == "https"

    async def _open(
        self, address: Address, port: int, host: str, scheme: str
    ) -> tuple[StreamReader, StreamWriter]:
        if scheme == "http":
            return await asyncio.open_connection(str(address), port, limit=_READ_AHEAD)
        return await asyncio.open_connection(
            str(address),
            port,
            limit=_READ_AHEAD,
            ssl=self._tls,
            server_hostname=host,
            ssl_shutdown_timeout=_TLS_CLOSE_S,
        )


def _refusal(host: str, scheme: str) -> str:
    if scheme == "http":
        return f"{host} needs TLS. Fix: https, or HERD_GATEWAY_WEBHOOK_PRIVATE if it is a private address"
    return f"{host} has no public address. Fix: HERD_GATEWAY_WEBHOOK_PRIVATE if a private one is meant"


def _look_up(host: str) -> list[Any]:
    """Resolve a host's name by the system. Raises OSError."""
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
