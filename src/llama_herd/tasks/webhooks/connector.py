"""A connection to the host of a webhook: its address is checked, and no other is connected to.

A name is looked up once. So nobody can answer one address for the check and another one for the connection.
"""

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ip_network, texts))


#: Networks of one's own. The setting opens these alone, not link-local ones, where clouds tell secrets.
PRIVATE = _networks(
    *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    *("::1/128", "fc00::/7"),
)
#: The registries' other networks that are not globally reachable, and multicast.
UNREACHABLE = _networks(
    *("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15"),
    *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    *("::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32", "3fff::/20"),
    *("5f00::/16", "fe80::/10", "ff00::/8"),
)
#: Those within them that are.
REACHABLE = _networks(
    *("192.0.0.9/32", "192.0.0.10/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:3::/32"),
    *("2001:4:112::/48", "2001:20::/28", "2001:30::/28"),
)
#: Where clouds tell a machine its secrets, beside 169.254.0.0/16: at private addresses, or at ones that no
#: registry has. Nobody's webhook is there, so no setting opens them.
METADATA = _networks(
    *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),  # Alibaba, Azure, Oracle
    *("fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::/32"),  # Amazon, Google, Oracle
    *("fd00:42::42/128", "fd00:a9fe:a9fe::/48"),  # Scaleway, Linode
)
#: All public addresses of IPv6 are in here.
_UNICAST = IPv6Network("2000::/3")
#: IPv6 addresses that stand for one of IPv4, and how many bits behind it they have: mapped, NAT64, 6to4.
EMBEDDING = {
    IPv6Network("::ffff:0:0/96"): 0,
    IPv6Network("64:ff9b::/96"): 0,
    IPv6Network("2002::/16"): 80,
}


def is_private(address: Address) -> bool:
    """Whether an address is of a network of one's own, and not where a cloud tells secrets."""
    meant = _real_address(address)
    return _is_in(meant, PRIVATE) and not _is_in(meant, METADATA)


def is_public(address: Address) -> bool:
    """Whether everybody on the internet means the same machine by it."""
    meant = _real_address(address)
    if isinstance(meant, IPv6Address) and meant not in _UNICAST:
        return False
    if _is_in(meant, PRIVATE) or _is_in(meant, METADATA):
        return False
    return not _is_in(meant, UNREACHABLE) or _is_in(meant, REACHABLE)


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _real_address(address: Address) -> Address:
    """The address of IPv4 that one of IPv6 stands for, or itself."""
    for network, num_bits in EMBEDDING.items():
        if address in network:
            return IPv4Address(int(address) >> num_bits & 0xFFFF_FFFF)
    return address


#: A name's lookup holds a thread for as long as its name server does not answer.
_LOOKUPS = ThreadPoolExecutor(32, "webhook-lookup")
#: Most bytes of an answer that are read ahead.
_READ_AHEAD = 16_384
_TLS_CLOSE_S = 2.0
_PORTS = {"https": 443, "http": 80}
#: What is wrong with a host, by the scheme, if no address of it is allowed.
_REFUSALS = {
    "http": "needs TLS. Fix: https, or HERD_GATEWAY_WEBHOOK_PRIVATE if it is a private address",
    "https": "has no public address. Fix: HERD_GATEWAY_WEBHOOK_PRIVATE if a private one is meant",
}


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
        """A connection to the first address that takes one. Raises AddressRefused and OSError."""
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        allowed = [
            address
            for address in await self._addresses(host)
            if (self._allows_private if is_private(address) else is_public(address) and url.scheme == "https")
        ]
        if not allowed:
            raise AddressRefused(f"{host} {_REFUSALS[url.scheme]}")
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
            look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
            lookup = asyncio.get_running_loop().run_in_executor(_LOOKUPS, look_up)
            self._lookups[host] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(host))
        found = await asyncio.shield(self._lookups[host])
        return list(dict.fromkeys(ip_address(place[0]) for *_, place in found))

    async def _open(
        self, address: Address, port: int, host: str, scheme: str
    ) -> tuple[StreamReader, StreamWriter]:
        tls: dict[str, Any] = {}
        if scheme == "https":
            tls = {"ssl": self._tls, "server_hostname": host, "ssl_shutdown_timeout": _TLS_CLOSE_S}
        return await asyncio.open_connection(str(address), port, limit=_READ_AHEAD, **tls)
