"""The address of Redis: one URL for redis-py and for Celery, complete with password and certificates."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redis.connection import parse_url

from llama_herd.errors import SettingsError

#: The files that a URL may name in its query.
CA, CERTIFICATE, KEY = "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"

DEFAULT_PORT = 26379
#: What a Sentinel's own documentation calls the Redis that it watches.
DEFAULT_MASTER = "mymaster"

#: Query parameters that such a URL may have.
OWN_PARAMETERS = ("db", "master", "sentinel_username", "sentinel_password")


def is_sentinel(url: str) -> bool:
    """Whether this is such an address, in our form or in Celery's."""
    return url.partition("://")[0] in ("sentinel", "sentinels")


def is_socket(url: str) -> bool:
    """Whether a checked address is that of a socket file."""
    return url.startswith("unix:")


def split_url(url: str) -> SplitResult:
    """`urlsplit`, but for hosts of Sentinels: some Pythons refuse an IPv6 address behind another host."""
    if not is_sentinel(url):
        return urlsplit(url)
    scheme, _, rest = re.sub(r"[\t\r\n]", "", url).partition("://")
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}://hosts{rest[len(netloc) :]}")._replace(netloc=netloc)


def hosts_of(parts: SplitResult) -> tuple[tuple[str, int], ...]:
    """The Sentinels. Raises ValueError, which repeats nothing of the URL."""
    each = [urlsplit(f"redis://{place}") for place in parts.netloc.rpartition("@")[2].split(",")]
    found = tuple((one.hostname or "", one.port or DEFAULT_PORT) for one in each)
    if not all(host and host.encode("idna") for host, _ in found):
        raise ValueError("a Sentinel has no host")
    return found


def asks_for_certificate(url: str) -> bool:
    """Whether the Redis of a checked `rediss://` address must show a certificate that can be trusted."""
    parts = split_url(url)
    return parts.scheme == "rediss" and dict(parse_qsl(parts.query)).get("ssl_cert_reqs") != "none"


@dataclass(frozen=True)
class SentinelUrl:
    """The parts of a checked address."""

    parts: SplitResult
    query: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> Self:
        parts = split_url(url)
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
        if self.parts.scheme != "sentinels":
            return {}
        names = self.query.keys() & {"ssl_cert_reqs", CA, CERTIFICATE, KEY}
        return {"ssl_cert_reqs": "required", **{name: self.query[name] for name in names}}

    @property
    def redis_options(self) -> dict[str, Any]:
        """redis-py's options for the connection to Redis."""
        user, _, password = self.parts.netloc.rpartition("@")[0].partition(":")
        database = {"db": int(self.parts.path.removeprefix("/") or 0)}
        return database | self._access_options(username=unquote(user), password=unquote(password))

    @property
    def sentinel_options(self) -> dict[str, Any]:
        """redis-py's options for the connections to Sentinels."""
        return self._access_options(
            **{name: self.query.get(f"sentinel_{name}", "") for name in ("username", "password")}
        )

    def _access_options(self, **login: str) -> dict[str, Any]:
        tls = {"ssl": True, **self.tls} if self.tls else {}
        return tls | {name: value for name, value in login.items() if value}

    @property
    def celery_url(self) -> str:
        """One URL a Sentinel, as Celery takes it; it has no place for the rest."""
        access, at, _ = self.parts.netloc.rpartition("@")
        database = self.parts.path.removeprefix("/") or "0"
        places = (f"[{host}]:{port}" if ":" in host else f"{quote(host)}:{port}" for host, port in self.hosts)
        return ";".join(f"sentinel://{access}{at}{place}/{database}" for place in places)


#: Query parameters that a URL may have: redis-py, Celery's broker and its backend read these alike.
PARAMETERS = {
    "redis": ("db",),
    "rediss": ("db", "ssl_cert_reqs", CA, CERTIFICATE, KEY),
    "unix": ("db", "username", "password"),
    "sentinel": OWN_PARAMETERS,
    "sentinels": (*OWN_PARAMETERS, "ssl_cert_reqs", CA, CERTIFICATE, KEY),
}

NOT_A_URL = (
    "must be the URL of a Redis. Fix: write redis://host:6379/0, rediss://host:6379/0, "
    "unix:///path/redis.sock or sentinel://host:26379,host2:26379/0?master=mymaster; in a password write "
    "@ / ? # as %40 %2F %3F %23"
)


def checked_url(url: str) -> str:
    """`url` in redis-py's form. Raises SettingsError if it is not the URL of a Redis."""
    try:
        return _checked(url)
    except ValueError as error:
        raise SettingsError(f"HERD_REDIS_URL: {error}") from None


def _checked(url: str) -> str:
    """Raises ValueError. Its message repeats nothing of the URL except names of parameters."""
    parts = _split(url.strip())  # what a file or a line of .env leaves at its ends is never meant
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    scheme = parts.scheme
    if scheme == "redis+socket":
        scheme = "unix"
        query = {"db" if name == "virtual_host" else name: value for name, value in query.items()}
    if "ssl_cert_reqs" in query:  # Celery writes CERT_REQUIRED and the like
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].removeprefix("CERT_").lower()
    _check_parameters(scheme, query)
    netloc = parts.netloc.replace(";", "%3B")  # of a password: Celery begins another address there
    path, database = parts.path, query.get("db", "")
    if scheme == "unix":
        netloc = _with_login(netloc, query.pop("username", ""), query.pop("password", ""))
    else:  # Celery reads the number of the database from the path alone
        database = query.pop("db", "") or path.removeprefix("/")
        path = f"/{database}" if database else path
    if database and re.fullmatch(r"[0-9]{1,9}", database) is None:
        raise ValueError("the database must be a whole number, as in redis://host:6379/0")
    return _joined(scheme, netloc, path, query)


def _with_login(netloc: str, user: str, password: str) -> str:
    """Put user and password before the host, unless they are there: Celery's broker reads no others."""
    login, _, place = netloc.rpartition("@")
    own_user, _, own_password = login.partition(":")
    user, password = own_user or quote(user, safe=""), own_password or quote(password, safe="")
    return f"{user}:{password}@{place}" if password else f"{user}@{place}" if user else place


def _split(url: str) -> SplitResult:
    """Raises ValueError if this is not the URL of a Redis, or if its password is not escaped."""
    try:
        parts = split_url(url)
        (parts.hostname or "").encode("idna")
        match parts.scheme:
            case "unix" | "redis+socket":
                is_place = bool(parts.path)
            case "sentinel" | "sentinels":
                is_place = all(port for _, port in hosts_of(parts))
            case scheme:
                is_place = scheme in PARAMETERS and parts.port != 0
    except ValueError:
        raise ValueError(NOT_A_URL) from None
    if not is_place or _is_torn(parts):
        raise ValueError(NOT_A_URL)
    return parts


def _is_torn(parts: SplitResult) -> bool:
    """Whether the URL looks as if an unescaped / ? or # in its password had split it."""
    has_host = parts.scheme not in ("unix", "redis+socket")
    return bool(parts.fragment) or (has_host and "@" in parts.path + parts.query)


def _check_parameters(scheme: str, query: Mapping[str, str]) -> None:
    known = PARAMETERS[scheme]
    unknown = [name for name in query if name not in known]
    if unknown:
        is_name = unknown[0].isidentifier() and len(unknown[0]) <= 40
        shown = f"the parameter {unknown[0]}" if is_name else "an unknown parameter"
        raise ValueError(f"has {shown}, but {scheme}:// takes only {', '.join(known)}. Fix: leave it out")
    if query.get("ssl_cert_reqs", "required") not in ("none", "optional", "required"):
        raise ValueError("ssl_cert_reqs must be one of none, optional, required")


def complete_url(
    url: str,
    *,
    password: str = "",
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    sentinel_password: str = "",
) -> str:
    """`url` completed by password and certificates, so that redis-py and Celery need nothing else.

    Values in `url` itself win, so completing a URL twice changes nothing. Raises SettingsError.
    """
    url = checked_url(url)
    parts = split_url(url)
    netloc, query = parts.netloc, dict(parse_qsl(parts.query))
    if not parts.password:
        netloc = _with_login(netloc, "", password)
    if sentinel_password and is_sentinel(url):
        query = {"sentinel_password": sentinel_password, **query}
    files = {CA: ca_file, CERTIFICATE: cert_file, KEY: key_file}
    given = {name: path for name, path in files.items() if path}
    if parts.scheme in ("rediss", "sentinels"):
        # Celery refuses rediss:// without ssl_cert_reqs.
        query = {"ssl_cert_reqs": "required", **given, **query}
        check_certificates(query)
    elif given:
        raise SettingsError(
            f"certificates need TLS, but HERD_REDIS_URL is {masked(url)}. Fix: write rediss:// instead of "
            "redis://, or sentinels:// instead of sentinel://"
        )
    return _joined(parts.scheme, netloc, parts.path, query)


def celery_url(url: str) -> str:
    """`url` in Celery's form, which differs for sockets and Sentinels; see also `celery_options`."""
    url = checked_url(url)
    if is_sentinel(url):
        return SentinelUrl.parse(url).celery_url
    parts = split_url(url)
    if parts.scheme != "unix":
        return url
    query = {"virtual_host" if name == "db" else name: value for name, value in parse_qsl(parts.query)}
    return _joined("redis+socket", parts.netloc, parts.path, query)


def is_same_redis(one: str, other: str) -> bool:
    """Whether two URLs, in any form, name the same database of the same Redis.

    Of addresses with Sentinels only those are the same that are equal, in our form or in Celery's.
    """
    try:
        if is_sentinel(one) or is_sentinel(other):
            return one == other or one == celery_url(other)
        return _database(one) == _database(other)
    except (SettingsError, ValueError):
        return False


def _database(url: str) -> tuple[Any, ...]:
    found: Any = parse_url(checked_url(url))  # type: ignore[no-untyped-call]
    place = found.get("path") or (found.get("host", "localhost"), found.get("port", 6379))
    return (place, found.get("db", 0), found.get("username"), found.get("password"))


def masked(url: str) -> str:
    """`url` to be shown, without its secrets. A user without a password may be a misplaced password."""
    try:
        parts = split_url(url)
        user, at, place = parts.netloc.rpartition("@")
        # It raises if an unescaped / splits the password.
        _ = hosts_of(parts) if is_sentinel(url) else parts.port
    except ValueError:
        return "(not a URL)"
    if _is_torn(parts):
        return "(not a URL)"
    name, colon, password = user.partition(":")
    shown = f"{name}:***" if colon and password else "***"
    netloc = f"{shown}{at}{place}" if at else place
    master = {name: value for name, value in parse_qsl(parts.query) if name == "master"}
    return _joined(parts.scheme, netloc, parts.path, master)


def _joined(scheme: str, netloc: str, path: str, query: Mapping[str, str]) -> str:
    """The URL. urlunsplit would drop the two slashes if there is no host."""
    return f"{scheme}://{netloc}{path}" + (f"?{urlencode(query)}" if query else "")


NAME_PEM = "Fix: name a PEM file that this user may read"


def problem_with_file(path: str) -> str:
    """Why a certificate or key cannot be read, with the fix; empty if it can.

    TLS would wait for ever at a pipe.
    """
    try:
        if not Path(path).exists():
            return f"names a file that does not exist. {NAME_PEM}"
        if not Path(path).is_file():
            return f"names something that is not a regular file. {NAME_PEM}"
        with Path(path).open("rb"):
            return ""
    except OSError as error:
        return f"names a file that cannot be read: {error.strerror}. {NAME_PEM}"


def check_certificates(query: Mapping[str, str]) -> None:
    """Raise SettingsError if a file that a URL's query names is not what TLS takes it for.

    Nobody has connected by then: a wrong one would look like an outage later.
    """
    for name in (CA, CERTIFICATE, KEY):
        if name in query and (problem := problem_with_file(query[name])):
            raise SettingsError(f"{name}={query[name]}: {problem}")
    tls, ca, own, key = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), *map(query.get, (CA, CERTIFICATE, KEY))
    try:
        if ca:
            tls.load_verify_locations(ca)
    except OSError:
        raise SettingsError(f"{CA}={ca}: names a file without a certificate. {NAME_PEM}") from None
    if own and (problem := problem_with_pair(own, key)):
        raise SettingsError(f"{CERTIFICATE}={own}, {KEY}={key or own}: {problem}")


def problem_with_pair(certificate: str, key: str | None) -> str:
    """Why these files are no certificate with its private key, and the fix; empty if they are."""
    try:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.load_cert_chain(certificate, key or None, password="")  # asked for at the terminal otherwise
    except (OSError, ValueError):
        return (
            "no certificate and its private key. Fix: name a pair of PEM files that belong together, the key "
            "without a password"
        )
    return ""
