"""Addresses of webhooks: what form they must have. Whether one may be called is decided when it is called."""

import re
from urllib.parse import SplitResult, urlsplit

MAX_URL_LENGTH = 2048

_CHARACTERS = re.compile(r"[!-~]+")
#: A name of labels, or an address.
_HOST = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?|[0-9a-f:.]{2,45}")


def check_webhook_url(url: str) -> SplitResult:
    """The parts of a webhook's address. Raises ValueError, which never has the address."""
    if len(url) > MAX_URL_LENGTH:
        raise ValueError(f"must have at most {MAX_URL_LENGTH} characters, got {len(url)}")
    if not _CHARACTERS.fullmatch(url):
        raise ValueError("must be ASCII without spaces. Fix: percent-encode other characters")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise ValueError("must be an address like https://example.com/hook") from None
    if parts.scheme not in ("https", "http"):
        raise ValueError("must begin with https://")
    if "@" in parts.netloc:
        raise ValueError("must not have a user or password: the signature says who calls")
    if "#" in url:
        raise ValueError("must not have a fragment, which no server sees")
    if port == 0 or not _HOST.fullmatch(host):
        raise ValueError("must name a host, and a port from 1 to 65535 if any")
    return parts


def host_of(url: str) -> str:
    """The host of an address in small letters; empty if it is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def url_without_query(url: str) -> str:
    """An address without its query, which may hold a secret."""
    return url.partition("?")[0]
