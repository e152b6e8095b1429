"""The address of a Redis that Sentinels watch: where they are, what they call it, and how either is entered.

sentinel://user:password@host1:26379,host2:26379/0?master=mymaster&sentinel_password=...

User, password and database are those of Redis; `sentinels://` is TLS to Sentinels and Redis alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from llama_herd.tasks.certificates import CA, CERTIFICATE, KEY

SCHEMES = ("sentinel", "sentinels")

DEFAULT_PORT = 26379
#: What a Sentinel's own documentation calls the Redis that it watches.
DEFAULT_MASTER = "mymaster"

#: Query parameters that such a URL may have.
OWN_PARAMETERS = ("db", "master", "sentinel_username", "sentinel_password")


def is_sentinel(url: str) -> bool:
    """Whether this is such an address, in our form or in Celery's."""
    return url.partition("://")[0] in SCHEMES


def hosts_of(parts: SplitResult) -> tuple[tuple[str, int], ...]:
    """The Sentinels. Raises ValueError, which repeats nothing of the URL."""
    each = [urlsplit(f"redis://{place}") for place in parts.netloc.rpartition("@")[2].split(",")]
    found = tuple((one.hostname or "", one.port or DEFAULT_PORT) for one in each)
    if not all(host and host.encode("idna") for host, _ in found):
        raise ValueError("a Sentinel has no host")
    return found


@dataclass(frozen=True)
class SentinelUrl:
    """The parts of a checked address."""

    parts: SplitResult
    query: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> Self:
        parts = urlsplit(url)
        return cls(parts, dict(parse_qsl(parts.query)))

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        return hosts_of(self.parts)

    @property
    def master(self) -> str:
        """The name by which the Sentinels know the Redis."""
        return self.query.get("master", DEFAULT_MASTER)

    @property
    def tls(self) -> dict[str, str]:
        """redis-py's options of TLS; empty without TLS."""
        names = ("ssl_cert_reqs", CA, CERTIFICATE, KEY)
        if self.parts.scheme != "sentinels":
            return {}
        return {
            "ssl_cert_reqs": "required",
            **{name: self.query[name] for name in names if name in self.query},
        }

    @property
    def redis_options(self) -> dict[str, Any]:
        """redis-py's options for the connection to Redis."""
        user, _, password = self.parts.netloc.rpartition("@")[0].partition(":")
        options: dict[str, Any] = {"db": int(self.parts.path.removeprefix("/") or 0), **self._tls_options}
        return options | _given(username=unquote(user), password=unquote(password))

    @property
    def sentinel_options(self) -> dict[str, Any]:
        """redis-py's options for the connections to Sentinels."""
        entry = {name: self.query.get(f"sentinel_{name}", "") for name in ("username", "password")}
        return self._tls_options | _given(**entry)

    @property
    def celery_url(self) -> str:
        """One URL a Sentinel, as Celery takes it; it has no place for the rest."""
        access, at, _ = self.parts.netloc.rpartition("@")
        database = self.parts.path.removeprefix("/") or "0"
        hosts = (f"[{host}]" if ":" in host else quote(host) for host, _ in self.hosts)
        ports = (port for _, port in self.hosts)
        return ";".join(
            f"sentinel://{access}{at}{host}:{port}/{database}"
            for host, port in zip(hosts, ports, strict=True)
        )

    @property
    def _tls_options(self) -> dict[str, Any]:
        return {"ssl": True, **self.tls} if self.tls else {}


def _given(**options: str) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}
