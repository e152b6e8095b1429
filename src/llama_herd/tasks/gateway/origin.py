"""Where a request comes from: a page, by its origin, or this machine, by its address."""

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
#: A browser reads a name whose last part is a number as an IPv4 address.
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\.?")
_OWN_PORTS = {"http": 80, "https": 443}
_FIX = "Fix: write it as https://app.example.com or http://localhost:3000, several with commas between"


def read_origins(text: str) -> frozenset[str]:
    """Origins in a list with commas, each in the form in which browsers send it.

    Raises ValueError for what no browser would send, since that would let in nobody.
    """
    parts = (part.strip() for part in text.split(","))
    return frozenset(_origin(part) for part in parts if part)


def origin_host(origin: str) -> str:
    """The host and the port of an origin; empty if it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _origin(given: str) -> str:
    if "*" in given:
        raise ValueError(f"{_shown(given)}: each origin is named whole, without *. {_FIX}")
    try:
        parts = urlsplit(given)
        host, port = _host(parts.hostname or ""), parts.port
    except ValueError:
        raise ValueError(f"{_shown(given)} is no origin. {_FIX}") from None
    has_more = "@" in parts.netloc or parts.path not in ("", "/") or "?" in given or "#" in given
    if not (host and _SCHEME.fullmatch(parts.scheme)) or has_more:
        raise ValueError(f"{_shown(given)} is no origin. {_FIX}")
    is_own = port is None or port == _OWN_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}" + ("" if is_own else f":{port}")


def _host(name: str) -> str:
    """A host as browsers write it; empty if it can be none. Raises ValueError for an odd address."""
    if "%" in name:
        return ""
    if ":" in name:
        return f"[{ipaddress.IPv6Address(name).compressed}]"
    if _NUMBER.fullmatch(name.removesuffix(".").rpartition(".")[2]):
        return str(ipaddress.IPv4Address(name))
    return name if _NAME.fullmatch(name) else ""


def _shown(given: str) -> str:
    return repr(given if len(given) <= 100 else f"{given[:100]}...")


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
