"""Which addresses a webhook may go to: public ones, and private ones if the gateway's settings say so."""

from ipaddress import IPv4Address, IPv6Address, ip_network

Address = IPv4Address | IPv6Address

#: Networks of one's own. The setting opens these alone, not link-local ones, where clouds tell secrets.
_PRIVATE = tuple(
    map(
        ip_network,
        (
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "::1/128",
            "fc00::/7",
        ),
    )
)
#: All public addresses of IPv6 are in here.
_UNICAST = ip_network("2000::/3")
#: IPv6 addresses that stand for one of IPv4, in their last bits.
_TRANSLATED = ip_network("64:ff9b::/96")


def is_private(address: Address) -> bool:
    """Whether an address is of a network of one's own."""
    meant = _real_address(address)
    return any(meant in network for network in _PRIVATE)


def is_public(address: Address) -> bool:
    """Whether everybody on the internet means the same machine by it."""
    meant = _real_address(address)
    if isinstance(meant, IPv6Address) and meant not in _UNICAST:
        return False
    return meant.is_global and not (meant.is_multicast or meant.is_reserved or is_private(meant))


def _real_address(address: Address) -> Address:
    """The address of IPv4 that one of IPv6 stands for, or itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
