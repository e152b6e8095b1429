"""Which addresses a webhook may go to: public ones, and private ones if the gateway's settings say so.

Sources: IANA's registries of special-purpose addresses of IPv4 and IPv6 (RFC 6890), by their column "globally
reachable"; the clouds' documentation of their metadata services.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

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
