"""Whether an address, or a request, is of this machine."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

#: Headers by which a proxy says that a request comes from elsewhere, and what others of them begin with.
FORWARDED = frozenset(
    (
        "forwarded",
        "via",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
    )
)
FORWARDED_PREFIXES = ("x-forwarded-", "x-original-", "x-envoy-")


def is_loopback(host: str) -> bool:
    """Whether this address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Whether a proxy has sent this request on."""
    return any(name in FORWARDED or name.startswith(FORWARDED_PREFIXES) for name in headers)


def names_loopback(host: str) -> bool:
    """Whether a Host header names this machine. A name of somebody else's DNS may point here, too."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
