"""Files of TLS, looked at before anybody connects: a wrong one would look like an outage later."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from llama_herd.errors import SettingsError

#: The files that a URL may name in its query.
CA, CERTIFICATE, KEY = "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"

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
    """Raise SettingsError if a file that a URL's query names is not what TLS takes it for."""
    for name in (CA, CERTIFICATE, KEY):
        if name in query and (problem := problem_with_file(query[name])):
            raise SettingsError(f"{name}={query[name]}: {problem}")
    tls, ca, own, key = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), *map(query.get, (CA, CERTIFICATE, KEY))
    try:
        if ca:
            tls.load_verify_locations(ca)
    except ssl.SSLError:
        raise SettingsError(f"{CA}={ca}: names a file without a certificate. {NAME_PEM}") from None
    try:
        if own:
            tls.load_cert_chain(own, key, password="")  # asked for at the terminal otherwise
    except (ssl.SSLError, ValueError):
        files = f"{CERTIFICATE}={own}, {KEY}={key or own}"
        raise SettingsError(
            f"{files}: no certificate and its private key. Fix: name a pair of PEM files that belong "
            "together, the key without a password"
        ) from None
